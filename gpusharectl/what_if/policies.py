"""Compare where node policies would place pods now, and what would be left (pure)."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.text import Text

from gpushare.annotations.pod_annotations import request_of
from gpushare.answers.placed_copies import WithCopies
from gpushare.answers.what_if import Extras, PlaceView, Question, not_checked, views_of
from gpushare.cards.placement_policy import NodePolicy
from gpushare.placement.rank import Policies
from gpushare.placement.trial import look
from gpushare.process.time_slices import run_all
from gpushare.text.counted import counted
from gpusharectl.policies.kinds import Kind, kinds_of, shown
from gpusharectl.policies.left import Left, left_on
from gpusharectl.policies.table import Row, largest_difference, rows_of, table
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.questions import UNKNOWN_HERE
from gpusharectl.what_if.lines import places, unchecked

SHOWN: Final = 5  # places of each policy, in text


class PolicyView(msgspec.Struct, rename="camel", frozen=True):
    """With a policy, ``fitting`` of the pods have ``places``; ``left`` is what is left then."""

    policy: str
    fitting: int
    places: list[PlaceView]
    left: Left


class Comparison(msgspec.Struct, rename="camel", frozen=True):
    """``asked`` pods with each of ``policies``; ``kinds`` are those of the cluster's pods.

    ``own_policy`` is the node policy that the pods request themselves, if they do.
    """

    unit_mib: int = msgspec.field(name="unitMiB")
    asked: int
    own_policy: str
    kinds: tuple[Kind, ...]
    policies: tuple[PolicyView, ...]
    not_checked: list[str]

    @property
    def fits(self) -> bool:
        return all(each.fitting == self.asked for each in self.policies)


def compare(
    cluster: ListedCluster, question: Question, extras: Extras, policies: Sequence[NodePolicy]
) -> Comparison:
    """Try the pods with each policy; RequestError if no node could ever grant their request."""
    own = request_of(question.pod).policy.node_policy
    kinds = shown(kinds_of(cluster.sharing()))
    return Comparison(
        unit_mib=cluster.unit_mib,
        asked=question.count,
        own_policy=own.value if own is not None else "",
        kinds=kinds,
        policies=tuple(_view(cluster, question, policy, kinds) for policy in policies),
        not_checked=[*not_checked(question.pod, extras), UNKNOWN_HERE],
    )


def _view(
    cluster: ListedCluster, question: Question, policy: NodePolicy, kinds: Sequence[Kind]
) -> PolicyView:
    cluster.policies = Policies(policy)
    found = run_all(look(cluster, question.pod, question.count)).places
    ledger = WithCopies(cluster, question.pod, found).ledger
    left = left_on(ledger, ledger.nodes(), kinds)
    return PolicyView(policy.value, len(found), views_of(found), left)


def draw(found: Comparison) -> Iterator[Text]:
    """Yield the table, and where the first copies go."""
    names = [each.policy for each in found.policies]
    lefts = [each.left for each in found.policies]
    yield from table(names, list(_rows(found)))
    if sentence := largest_difference(names, lefts, found.kinds, found.unit_mib):
        yield Text(sentence)
    if found.own_policy:
        yield Text(f"the pod requests node policy {found.own_policy} itself, which counts")
    for each in found.policies:
        yield Text(f"places with {each.policy}:")
        yield from places(each.places[:SHOWN])
        if len(each.places) > SHOWN:
            yield Text(f"  and {counted(len(each.places) - SHOWN, 'more place')}")
    yield from unchecked(found.not_checked)


def _rows(found: Comparison) -> Iterator[Row]:
    yield "pods that fit", [f"{each.fitting} of {found.asked}" for each in found.policies]
    yield from rows_of([each.left for each in found.policies], found.kinds, found.unit_mib)
