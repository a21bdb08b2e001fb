"""The trial with hostile objects cannot pass without trying them."""

import asyncio
import json
import math
import sys
from dataclasses import replace

import pytest

from gpushare.objects.pod_reader import MOST_RESOURCES_BYTES
from localcluster.errors import ApiError
from localcluster.wait import patient
from localcluster.workloads import RESOURCE
from tests.trials import half_open
from tests.trials.hostile_objects import KINDS, asking, largest
from tests.trials.hostile_verdict import LEAST_CALLS, Found, broken, percentile

QUICK = [1.0] * LEAST_CALLS
TRIED = Found(
    calm=QUICK,
    hostile=[2.0] * LEAST_CALLS,
    writes=1,
    taken=dict.fromkeys(KINDS, 1),
    connections=512,
    bound=1,
)


def judged(**changed):
    return broken(replace(TRIED, **changed), KINDS, 512)


def test_what_was_tried_and_kept_its_promise_breaks_none():
    assert judged() == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"calm": QUICK[1:]}, "measured 199 times without"),
        ({"hostile": QUICK[1:]}, "measured 199 times with "),
        ({"calm": [], "hostile": []}, "cannot be compared"),
        ({"calm": [*QUICK, *[math.inf] * 9]}, "cannot be compared"),
        ({"hostile": [*QUICK, *[math.inf] * 9]}, "cannot be compared"),
        ({"calm": [math.inf] * 999}, "measured 0 times without"),
        ({"calm": [0.0] * LEAST_CALLS}, "cannot be compared"),
        ({"hostile": [2.1] * LEAST_CALLS}, "2.10 times as long"),
        ({"writes": 0}, "wrote nothing"),
        ({"taken": {}}, "nothing was taken of: one variable of <, "),
        ({"taken": dict.fromkeys(KINDS, 1) | {"labels": 0}}, "nothing was taken of: labels"),
        ({"connections": 511}, "511 half-open"),
        ({"bound": 0}, "no ordinary pod"),
    ],
)
def test_what_was_not_tried_or_took_too_long_is_named(changed, text):
    assert any(text in each for each in judged(**changed))


def test_a_trial_of_nothing_breaks_everything():
    assert len(broken(Found([], [], 0, {}, 0, 0), KINDS, 512)) == 7


def test_a_call_that_was_not_answered_counts_as_the_slowest():
    assert percentile([1.0, 2.0, math.inf], 0.99) == math.inf
    assert percentile([], 0.5) == math.inf


@pytest.fixture
def deep():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_pod_that_can_ask_for_gpu_memory_and_be_made_smaller(kind, deep):
    refused = []

    def create(described):
        json.dumps(described)
        if not refused:
            refused.append(described)
            raise ApiError(413, "too large")

    first, second = largest(kind, create)
    assert first > second
    asks = asking(KINDS[kind][0](second), "2")
    assert asks["spec"]["containers"][0]["resources"]["limits"][RESOURCE] == "2"


def test_amounts_of_many_containers_are_more_than_is_decoded():
    containers = asking(KINDS["amounts"][0](300), "2")["spec"]["containers"]
    sizes = [len(json.dumps(each["resources"])) for each in containers]
    assert sum(sizes) > 10 * MOST_RESOURCES_BYTES
    assert len({each["name"] for each in containers}) == 300
    made = KINDS["amounts"][0](2)
    assert RESOURCE in made["spec"]["containers"][0]["resources"]["limits"], "it is always decoded"


def test_fields_are_nested_as_deep_as_was_asked():
    [entry] = KINDS["nested fields"][0](3000)["metadata"]["managedFields"]
    inner, depth = entry["fieldsV1"]["f:metadata"]["f:annotations"]["f:x"], 0
    while inner:
        inner, depth = inner["f:y"], depth + 1
    assert depth == 3000


async def test_a_closed_half_open_connection_is_opened_again_from_each_address(monkeypatch):
    monkeypatch.setattr(half_open, "AGAIN_SECONDS", 0)
    monkeypatch.setattr(half_open, "MAX_PER_UNTRUSTED", 2)
    came, enough = [], asyncio.Event()

    async def close(reader, writer):
        came.append(writer.get_extra_info("peername")[0])
        writer.close()
        if min(map(came.count, ("127.0.0.2", "127.0.0.3"))) > 4:
            enough.set()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        held = half_open.HalfOpen(server.sockets[0].getsockname()[1])
        holding = asyncio.create_task(held.hold(["127.0.0.2", "127.0.0.3"], ["127.0.0.1"]))
        async with asyncio.timeout(patient(5)):
            await enough.wait()
        holding.cancel()
        await asyncio.wait([holding])
    assert set(came) == {"127.0.0.2", "127.0.0.3"}
    assert held.opened >= 10
