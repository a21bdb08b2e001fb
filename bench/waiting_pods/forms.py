"""The forms in which filter can reject every node that it was asked for."""

from collections.abc import Sequence
from typing import Final

from bench.waiting_pods.recording import Answer, Decide

TEXT: Final = "no GPU has room"


def every_name(asked: Sequence[str]) -> Answer:
    return Answer(unresolvable=dict.fromkeys(asked, TEXT))


def one_name(asked: Sequence[str]) -> Answer:
    return Answer(unresolvable={asked[0]: TEXT})


def every_name_failed(asked: Sequence[str]) -> Answer:
    return Answer(failed=dict.fromkeys(asked, TEXT))


def others(every: Sequence[str]) -> Decide:
    """Return a form that names only nodes that kube-scheduler did not ask for."""

    def answer(asked: Sequence[str]) -> Answer:
        return Answer(unresolvable=dict.fromkeys(_not_asked(every, asked), TEXT))

    return answer


def others_and_one(every: Sequence[str]) -> Decide:
    def answer(asked: Sequence[str]) -> Answer:
        return Answer(unresolvable=dict.fromkeys([*_not_asked(every, asked), asked[0]], TEXT))

    return answer


def whole_cluster(every: Sequence[str]) -> Decide:
    return lambda _: Answer(unresolvable=dict.fromkeys(every, TEXT))


FORMS: Final[dict[str, Decide]] = {
    "every asked node": every_name,
    "one asked node": one_name,
    "no node": lambda _: Answer(),
}


def _not_asked(every: Sequence[str], asked: Sequence[str]) -> list[str]:
    known = set(asked)
    return [name for name in every if name not in known]
