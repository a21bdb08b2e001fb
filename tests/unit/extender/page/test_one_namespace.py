"""The live page of one namespace: its own pods, and of others nothing but amounts."""

import json

import pytest
from msgspec.structs import replace

from extender.page import cluster_feed, streams
from extender.page.cluster_feed import GANGS_SECONDS, PLACES_SECONDS, ClusterFeed
from extender.page.rules import CardUsage, NodeUsage, of_namespace
from extender.server import authorization
from extender.server.limits import MAX_STREAMS, SHARES
from gpushare.contract import ANNOTATION_CARDS, LABEL_GANG, LABEL_GANG_MINIMUM
from gpushare.live_page.feed import CHUNK_BYTES, NEVER, PendingPod
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from tests.builders import node, pod
from tests.unit.extender.page.test_cluster_feed import Viewer, pending
from tests.unit.extender.queue.scene import Scene
from tests.unit.extender.scripted import PREFIX, Bench, bound, changed
from tests.unit.extender.server.test_authorization import Reviews, bearer, reading

REASON = "0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem."


def secret(found, **more):
    return changed(found, {"namespace": "secret", **more})


def in_gang(found, gang):
    return changed(found, {"labels": {LABEL_GANG: gang, LABEL_GANG_MINIMUM: "2"}})


@pytest.fixture
def bench():
    """Two namespaces with everything that a page can show, on one node with two GPUs."""
    made = Bench(16, 16)
    for name in ("default", "secret"):
        made.cluster.state.namespaces.put(Namespace(name, quota=parse("8")))
    elsewhere = {ANNOTATION_CARDS: "GPU-of-another-node"}  # it may run on any GPU of its node
    made.add(
        bound("mine", 4),
        secret(bound("theirs", 12)),
        secret(pod("theirs-anywhere", 2, node="n", annotations=elsewhere)),
        pending("waits", 15, REASON),
        secret(pending("theirs-waits", 16, REASON)),
        in_gang(pending("member", 8), "ours"),
        secret(in_gang(pending("theirs-member", 8), "theirs-gang")),
    )
    return made


@pytest.fixture
def feed(bench):
    return ClusterFeed(bench.cluster.state, lambda: True)


def test_pods_of_others_are_amounts_without_names(feed):
    viewer = Viewer(feed, "default").update()
    [found] = viewer.nodes.values()
    first, second = found["devs"]
    assert [each["name"] for each in first["pods"]] == ["mine"]
    assert (first["usedGPU"], second["usedGPU"], second["pods"]) == (16, 0, [])
    assert (found["unplaced"], second["free"], second["unplacedOfOthers"]) == ([], 14, 2)
    assert {each["name"] for each in viewer.pods.values()} == {"waits", "member"}
    assert [each["name"] for each in viewer.gangs.values()] == ["ours"]
    assert [(each["namespace"], each["limit"]) for each in viewer.quotas.values()] == [
        ("default", 8)
    ]
    for word in (b"secret", b"theirs"):
        assert word not in viewer.told
        assert word in Viewer(feed).update().told


def test_a_sentence_names_no_pod_of_another_namespace(bench):
    bench.cluster.state.namespaces.put(Namespace("default"))
    feed = ClusterFeed(bench.cluster.state, lambda: True)
    whole, ours = Viewer(feed).update(), Viewer(feed, "default").update()
    assert "secret/theirs" in whole.pods["uid-waits"]["why"]
    said = ours.pods["uid-waits"]["why"]
    assert said.startswith("requests 15 MiB on one GPU")
    assert "another namespace" in said


def test_a_sentence_follows_what_is_told_of_the_own_pods_alone(bench):
    """The full text may stay as it is, while another pod of the namespace is named."""
    feed = ClusterFeed(bench.cluster.state, lambda: True)
    ours = Viewer(feed, "default").update()
    view = PendingPod("u", "default", "w", 0, "", why="when mine/theirs ends")
    for named in ("a", "b"):
        feed.put_pod("u", view, replace(view, why=f"when {named} ends"))
        assert ours.update().pods["u"]["why"] == f"when {named} ends"


def test_gangs_of_others_neither_hide_the_own_ones_nor_are_counted(bench, monkeypatch):
    monkeypatch.setattr(cluster_feed, "MOST_GANGS", 3)
    for number in range(5):
        bench.add(secret(in_gang(pending(f"t{number}", 8), f"a{number}"), uid=f"uid-t{number}"))
    bench.add(*(in_gang(pending(f"other-{each}", 8), each) for each in ("second", "third")))
    feed = ClusterFeed(bench.cluster.state, lambda: True)
    viewer = Viewer(feed, "default").update()
    assert [each["name"] for each in viewer.gangs.values()] == ["ours", "second"]
    assert viewer.more_gangs == {"default": 1}
    assert Viewer(feed).update().more_gangs == {"default": 1, "secret": 5}


def test_a_namespace_that_is_being_deleted_has_no_quota_for_that(bench, feed):
    bench.cluster.state.namespaces.put(Namespace("ends", is_ending=True))
    bench.cluster.state.namespaces.put(Namespace("wrong", problem="1 GB is no number"))
    assert set(Viewer(feed).update().quotas) == {"default", "secret", "wrong"}


def test_nothing_is_told_of_others_when_they_come_and_go(bench, feed):
    viewer = Viewer(feed, "default").update()
    bench.add(secret(pending("theirs-new", 8, REASON)), pending("mine-new", 8, REASON))
    bench.time.now += PLACES_SECONDS
    viewer.update()
    assert "uid-mine-new" in viewer.pods
    bench.cluster.pod_deleted(bench.kube.pods["mine-new"])
    for each in list(bench.kube.pods.values()):
        if each.metadata.namespace == "secret":
            bench.cluster.pod_deleted(each)
    bench.cluster.state.namespaces.put(Namespace("secret"))
    bench.time.now += PLACES_SECONDS + GANGS_SECONDS
    viewer.update()
    assert {each["name"] for each in viewer.pods.values()} == {"waits", "member"}
    assert b"secret" not in viewer.told
    assert b"theirs" not in viewer.told
    assert [card["usedGPU"] for card in viewer.nodes["n"]["devs"]] == [4, 0]


def test_many_pods_of_others_make_no_step_long(feed, bench):
    for number in range(2000):
        bench.add(secret(pending(f"theirs-{number}", 8)))
    list(feed.update())
    events = list(feed.events(NEVER, "default"))
    assert len(events) > 2000 * 64 // CHUNK_BYTES
    assert max(map(len, events)) < 4096


async def test_positions_are_those_of_the_whole_queue():
    made = Scene({"n": (16,)})
    made.namespace("team")
    made.namespace("secret")
    made.running("r", 16)
    made.pod("theirs", 8, namespace="secret", age=99)
    made.pod("p", 8)
    await made.round()
    feed = ClusterFeed(made.state, lambda: True)
    assert Viewer(feed).update().places == [["uid-theirs"], ["uid-p"]]
    ours = Viewer(feed, "team").update()
    assert ours.places == [[], ["uid-p"]]
    assert b"uid-theirs" not in ours.told


def test_real_use_is_that_of_the_namespaces_pods():
    card = CardUsage({"ml/a": 5, "ml-2/b": 7}, {"ml/a": 40, "ml-2/b": 50}, others=3)
    [found] = of_namespace(NodeUsage({"GPU-0": card}), "ml").cards.values()
    assert (found.pods, found.sm, found.others) == ({"ml/a": 5}, {"ml/a": 40}, 0)
    assert found.is_partial
    assert of_namespace(NodeUsage(why="not measured"), "ml").why == "not measured"


async def test_the_right_to_list_the_pods_of_the_namespace_suffices(bench):
    reviews = Reviews()
    reviews.may = {("alice", "list", "default")}
    async with reading(bench, reviews) as client:
        for page, status in (
            ("changes/default", 200),
            ("changes/secret", 403),
            ("changes", 403),
            ("usage/default?node=n", 200),
            ("usage/secret?node=n", 403),
        ):
            async with client.get(f"{PREFIX}/{page}", headers=bearer("good")) as answer:
                assert answer.status == status, page
                if page == "changes/default":
                    assert await answer.content.readline() == b"event: begin\n"
                    while (line := await answer.content.readline()) != b"event: whole\n":
                        assert b"secret" not in line
        async with client.get(f"{PREFIX}/changes/default") as answer:
            assert answer.status == 401


async def test_a_stream_of_a_namespace_ends_when_its_right_is_revoked(bench, monkeypatch):
    monkeypatch.setattr(streams, "REVIEW_SECONDS", 0.0)
    reviews = Reviews()
    reviews.may = {("alice", "list", "default")}
    async with (
        reading(bench, reviews) as client,
        client.get(f"{PREFIX}/changes/default", headers=bearer("good")) as answer,
    ):
        await answer.content.readline()
        reviews.may.clear()
        bench.time.now += 3600
        assert b"may not list pods in namespace default" in await answer.content.read()


async def test_a_right_that_is_revoked_meanwhile_ends_even_the_first_state(bench, monkeypatch):
    class Revoked(Reviews):
        async def request(self, method, path, *, body, seconds):
            named = [spec.get("resourceAttributes", {}).get("namespace") for _, spec in self.asked]
            if named.count("default") > 3:
                self.may.clear()
            return await super().request(method, path, body=body, seconds=seconds)

    monkeypatch.setattr(streams, "REVIEW_SECONDS", 0.0)
    monkeypatch.setattr(authorization, "ALLOWED_SECONDS", 0.0)
    for number in range(200):
        bench.cluster.node_changed(node(f"n{number}", *[16] * 8))
    reviews = Revoked()
    reviews.may = {("alice", "list", "default")}
    async with (
        reading(bench, reviews) as client,
        client.get(f"{PREFIX}/changes/default", headers=bearer("good")) as answer,
    ):
        told = await answer.content.read()
        assert b"event: begin" in told
        assert b"event: whole" not in told
        assert b"may not list pods in namespace default" in told


async def test_pages_of_namespaces_have_a_limit_of_their_own(bench):
    reviews = Reviews()
    reviews.may = {("alice", "list", "default"), ("alice", "list", "")}
    own, every = f"{PREFIX}/changes/default", f"{PREFIX}/changes"
    async with reading(bench, reviews) as client:
        answers = [
            await client.get(own, headers=bearer("good")) for _ in range(MAX_STREAMS // SHARES)
        ]
        answers.append(await client.get(every, headers=bearer("good")))
        assert {answer.status for answer in answers} == {200}
        async with client.get(own, headers=bearer("good")) as answer:
            assert answer.status == 429
            assert "try again" in json.loads(await answer.read())["Error"]
        for answer in answers:
            answer.close()


def test_many_nodes_are_told_in_short_events(feed, bench):
    for number in range(200):
        bench.cluster.node_changed(node(f"n{number}", *[16] * 8))
    list(feed.update())
    assert max(map(len, feed.events(NEVER, "default"))) < CHUNK_BYTES + 4096
