"""Releasing many pods: a few at a time, and every outcome is told."""

import asyncio

import pytest

from extender.gates import releaser
from extender.gates.patch import release_patch
from extender.gates.releaser import AT_ONCE, ATTEMPTS, Outcome, Release, Releaser
from gpushare.errors import (
    ApiError,
    Conflict,
    NotFound,
    NotLeading,
    OutcomeUnknown,
    Replaced,
    Unreachable,
)
from tests.builders import pod

OTHER_POD = Replaced("PATCH: 422 Invalid: metadata.uid: field is immutable", code=422)
IN_USE = Conflict("PATCH: 409 Conflict: the object has been modified", code=409)
POLICY = ApiError("422: ValidatingAdmissionPolicy 'gpushare-gates' denied request", code=422)


class Api:
    """Answers each pod by its script, then with success; counts what is in progress."""

    def __init__(self, **errors: list[Exception]) -> None:
        self.errors, self.tries = errors, dict.fromkeys(errors, 0)
        self.now = self.most = 0

    async def nominate_node(self, pod, patch):
        await self.release_pod(pod, patch)

    async def release_pod(self, pod, patch):
        name = pod.metadata.name
        assert patch["metadata"]["uid"] == pod.uid
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            self.tries[name] = self.tries.get(name, 0) + 1
            if self.errors.get(name):
                raise self.errors[name].pop(0)
        finally:
            self.now -= 1


@pytest.fixture(autouse=True)
def without_delays(monkeypatch):
    monkeypatch.setattr(releaser, "Backoff", lambda *_: type("At", (), {"next": lambda _: 0.0})())


def release(name: str) -> Release:
    found = pod(name)
    return Release(found, release_patch(found))


async def test_at_most_so_many_patches_are_in_progress_whoever_asks():
    api = Api()
    made = Releaser(api)
    asked = [[release(f"p{batch}-{place}") for place in range(50)] for batch in range(3)]
    found = await asyncio.gather(*map(made.release_all, asked))
    assert api.most == AT_ONCE
    assert [len(each) for each in found] == [50] * 3
    assert {outcome for each in found for outcome in each.values()} == {Outcome.RELEASED}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotFound("", code=404), Outcome.GONE),
        (OTHER_POD, Outcome.GONE),
        (ApiError("422 Invalid: spec: Forbidden", code=422), Outcome.CONFLICT),
        (POLICY, Outcome.REFUSED),
        (ApiError("403", code=403), Outcome.REFUSED),
    ],
)
async def test_a_refusal_is_told_and_not_repeated(error, outcome):
    api = Api(p=[error] * ATTEMPTS)
    assert await Releaser(api).release(release("p")) is outcome
    assert api.tries == {"p": 1}


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("timeout"),
        OutcomeUnknown("500", code=500),
        Unreachable("refused"),
        ApiError("429", code=429),
        IN_USE,
        NotLeading("too late"),
    ],
)
async def test_what_may_pass_is_tried_again(error):
    api = Api(p=[error] * (ATTEMPTS - 1), q=[error] * ATTEMPTS)
    made = Releaser(api)
    found = await made.release_all([release("p"), release("q"), release("r")])
    assert found == {
        "uid-p": Outcome.RELEASED, "uid-q": Outcome.UNKNOWN, "uid-r": Outcome.RELEASED,
    }  # fmt: skip
    assert api.tries == {"p": ATTEMPTS, "q": ATTEMPTS, "r": 1}
