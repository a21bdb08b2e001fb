"""A simulation on the live page: each step by itself, in any order."""

import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gpushare.placement.rank import Policies
from gpusharectl.loopback import served
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate import examples
from gpusharectl.simulate.replay.server import application
from gpusharectl.simulate.replay.steps import Replay
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from tests.unit.gpusharectl.simulate import dumps

PREFIX = "/gpushare-scheduler"


def scenario(name):
    return build(read(name, examples.content(name)), None)


def replay_of(made, left_out=()):
    return Replay(made, Policies(), left_out)


def received(replay, number):
    """Return what a page has after this step."""
    found = {"nodes": {}, "pods": {}, "gangs": {}}
    for event in replay.events(number):
        kind, data, *_ = event.decode().split("\n")
        kind, data = kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))
        if kind == "begin":
            found["played"] = data["simulation"]
        elif kind == "history":
            found["history"] = data
        found["nodes"] |= {each["name"]: each for each in data.get("nodes", ())}
        found["gangs"] |= {each["key"]: each for each in data.get("gangs", ())}
        found["pods"] |= {each["name"]: each for each in data.get("pods", ())}
    return found


@pytest.fixture(params=[name for name, _ in examples.titles()])
def example(request):
    return request.param


def test_every_step_shows_what_the_simulation_says(example):
    replay = replay_of(scenario(example))
    for step in Run(scenario(example), Policies()).steps():
        found = received(replay, step.number)
        assert found["played"]["step"] == step.number
        assert {name: node["usedGPU"] for name, node in found["nodes"].items()} == {
            node.name: sum(card.used for card in node.cards) for node in step.nodes
        }
        waiting = {pod.name for group in step.waiting for pod in group.pods}
        assert set(found["pods"]) == waiting
        assert len(found["history"]["samples"]) == step.number


def test_going_back_shows_the_same_step_again(example):
    replay = replay_of(scenario(example))
    numbers = [*range(1, replay.count + 1)]
    forward = [received(replay, number) for number in numbers]
    back = [received(replay, number) for number in reversed(numbers)]
    assert [*reversed(back)] == forward


def test_every_step_says_first_what_is_not_simulated():
    replay = replay_of(scenario("fragmentation"), ["volumes (1 pod)"])
    for number in (2, 1):
        first = received(replay, number)["played"]["happened"][0]
        assert first == "Not simulated here: volumes (1 pod)."


def test_a_pending_pod_is_explained_in_its_step():
    replay = replay_of(scenario("fragmentation"))
    [pod] = received(replay, 3)["pods"].values()
    found = replay.explained(3, pod["namespace"], pod["name"], 5)
    assert found.state == "waiting"
    assert not found.outlook.fits
    assert found.nodes
    assert replay.explained(1, "default", "no-such-pod", 5) is None


async def test_a_step_that_there_is_not_is_rejected_with_the_range():
    async with TestClient(TestServer(application(replay_of(scenario("vllm"))))) as client:
        for text in ("0", "", "x", "-1", "1.5", "²", "9" * 5000):
            for page in ("changes", "explain/default/llama-new"):
                async with client.get(f"{PREFIX}/{page}", params={"step": text}) as answer:
                    assert answer.status == 400
                    assert "the steps are 1 to 3" in (await answer.json())["Error"]


async def test_a_step_after_the_last_is_the_last():
    async with TestClient(TestServer(application(replay_of(scenario("vllm"))))) as client:
        for text in ("4", "9" * 20):
            async with client.get(f"{PREFIX}/changes", params={"step": text}) as answer:
                while not (line := await answer.content.readline()).startswith(b"data: "):
                    pass
            assert json.loads(line.removeprefix(b"data: "))["simulation"]["step"] == 3


async def test_only_pages_of_this_server_can_ask():
    app = application(replay_of(scenario("vllm")))
    async with served(app, 0, name="simulate") as url, TestClient(TestServer(app)) as client:
        page = f"{url}{PREFIX}/page"
        evil = {"Sec-Fetch-Site": "cross-site"}
        for headers, status in (
            ({}, 200),
            ({"Host": "evil.example"}, 421),
            ({**evil, "Sec-Fetch-Mode": "no-cors"}, 403),
            ({**evil, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
            ({**evil, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ):
            async with client.session.get(page, headers=headers) as answer:
                assert answer.status == status


def test_a_pod_that_is_pending_for_a_whole_gpu_is_explained_as_in_the_list():
    made = dumps.node("n", 1, labels=dumps.labels(1, 81920)), dumps.pod("a", "n", gpu=1)
    content = dumps.dump(*made, dumps.pod("waits", gpu=1))
    replay = replay_of(build(read("f.json", content)))
    [pod] = received(replay, 1)["pods"].values()
    assert (pod["units"], pod["cards"], pod["why"]) == (0, 1, "requests 1 whole GPU; none is idle")
    assert replay.explained(1, "ml", "waits", 5).says == pod["why"]
