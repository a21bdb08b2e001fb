"""A member that replaces a failed one is placed alone, though the others have finished and gone."""

import json

import pytest

from gpushare.errors import ApiError
from gpushare.groups.model import Source
from gpushare.objects.model import OwnerReference
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.gangs.test_answers import gang, names
from tests.unit.extender.gangs.test_duties import SIZES, ListedKube, owned
from tests.unit.extender.scripted import changed


class JobKube(ListedKube):
    """An API server with the Job of ``owned`` pods; without a ``job`` it may not be read."""

    def __init__(self, job=None) -> None:
        super().__init__()
        self.job = job

    async def request(self, method, path) -> bytes:
        if "/jobs/" not in path:
            return await super().request(method, path)
        assert (method, path) == ("GET", "/apis/batch/v1/namespaces/default/jobs/train")
        if self.job is None:
            raise ApiError("forbidden", code=403)
        return json.dumps(self.job).encode()


def job(succeeded, completions=4, uid="uid-train"):
    return {
        "metadata": {"uid": uid},
        "spec": {"completions": completions},
        "status": {"succeeded": succeeded},
    }


async def placed(cluster: GangCluster, name: str, seconds: int = 60) -> bool:
    """Return whether a member that waits is bound after a while."""
    for _ in range(seconds):
        if await cluster.schedule(name):
            return True
        cluster.time.now += 1
        await cluster.duties.check()
    return False


@pytest.mark.parametrize(
    ("said", "is_placed"),
    [
        (job(3), True),
        (job(2), False),
        (job(3, completions=None), False),
        (job(3, uid="uid-another"), False),
        ({}, False),
        (None, False),
    ],
)
async def test_a_new_leader_reads_from_the_job_how_many_members_have_succeeded(said, is_placed):
    cluster = GangCluster(SIZES, kube=JobKube(said))
    cluster.add(owned(member("g-9", "g", 4, units=12)))
    assert await placed(cluster, "g-9") is is_placed


async def test_a_pod_that_has_succeeded_and_still_exists_counts_once():
    cluster = GangCluster(SIZES, kube=JobKube(job(2)))
    for name in ("g-0", "g-1"):
        done = owned(member(name, "g", 4, units=12, phase="Succeeded"))
        cluster.listed.ended.append(done)
    cluster.add(owned(member("g-9", "g", 4, units=12)))
    assert not await placed(cluster, "g-9")


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
async def test_the_successor_of_the_last_member_is_placed_alone(kind):
    owner = OwnerReference(controller=True, kind=kind, name="train", uid="uid-train")
    mine = {"owner_references": (owner,)}
    cluster = GangCluster(SIZES, kube=JobKube())
    cluster.add(*(changed(each, mine) for each in gang("g", 4)))
    assert len(await cluster.schedule(*names("g", 4))) == 4
    cluster.delete(*names("g", 4))
    cluster.add(changed(member("g-9", "g", 4, units=12), mine))
    assert await placed(cluster, "g-9")


async def test_a_gang_that_its_controller_creates_again_waits_for_room_as_a_whole():
    cluster = GangCluster(SIZES, kube=JobKube())
    cluster.add(*map(owned, gang("g", 4)))
    assert len(await cluster.schedule(*names("g", 4))) == 4
    cluster.delete(*names("g", 4))
    cluster.add(*(member(f"x-{n}", "x", 1, units=12) for n in range(3)))
    assert len(await cluster.schedule("x-0", "x-1", "x-2")) == 3
    again = [f"g-{n}" for n in range(4, 8)]
    cluster.add(*(owned(member(name, "g", 4, units=12)) for name in again))
    for _ in range(30):
        assert await cluster.schedule(*again) == {}
        cluster.time.now += 1
        await cluster.duties.check()


@pytest.mark.parametrize(("hours", "is_placed"), [(0.5, True), (2, False)])
async def test_a_gang_that_has_gone_is_forgotten_after_an_hour(hours, is_placed):
    cluster = GangCluster(SIZES, kube=JobKube())
    cluster.add(*map(owned, gang("g", 4)))
    await cluster.schedule(*names("g", 4))
    cluster.delete(*names("g", 4))
    cluster.time.now += hours * 3600
    cluster.add(owned(member("g-9", "g", 4, units=12)))
    assert await placed(cluster, "g-9") is is_placed


@pytest.mark.parametrize(
    ("source", "deleted", "is_placed"),
    [
        (Source.KUEUE, None, True),
        (Source.KUEUE, "2026-01-01T00:00:00Z", False),
        (Source.LABELS, None, False),  # they may be from an earlier run
    ],
)
async def test_bare_pods_that_have_succeeded_count_in_a_group_of_kueue(source, deleted, is_placed):
    cluster = GangCluster(SIZES, kube=JobKube())
    cluster.listed.ended = [
        member(f"g-{n}", "g", 3, source=source, units=12, phase="Succeeded", deleted=deleted)
        for n in range(2)
    ]
    cluster.add(member("g-2", "g", 3, source=source, units=12))
    assert await placed(cluster, "g-2") is is_placed
