"""In replayed admissions of a real kubelet each Allocate finds its own pod."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.allocation.admission import Admission, Match, find
from deviceplugin.errors import NoMatch
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.annotations.pod_annotations import containers_of
from gpushare.contract import ANNOTATION_ASSUME_TIME, ANNOTATION_SEEN
from gpushare.objects.model import Pod, PodStatus
from tests.fakes.pods import pod
from tests.unit.deviceplugin.allocation.test_admission import created, seen

AMOUNTS = st.integers(1, 2)  # few, so that most pods look alike


@dataclass
class Kubelet:
    """What the plugin can see of a kubelet: its pods and its checkpoint.

    A status comes back through the API server, ``lag`` pods later: until then a pod that was
    rejected is listed as if it waited, and so is one that has all its devices.
    """

    lag: int = 0
    listed: dict[str, Pod] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    before: Admission | None = None
    _underway: list[tuple[str, PodStatus]] = field(default_factory=list)

    def admit(self, admitted: Pod, *, over: bool = False, fails_at: int = 99) -> list[Match]:
        """Add the pod and ask for its devices; ``over``: rejected before any Allocate."""
        self.listed[admitted.uid] = admitted
        while len(self._underway) > self.lag:
            uid, status = self._underway.pop(0)
            self.listed[uid] = msgspec.structs.replace(self.listed[uid], status=status)
        matches = [] if over else self._allocate(admitted, fails_at)
        is_rejected = over or fails_at < len(_sizes(admitted))
        self._underway.append(
            (
                admitted.uid,
                PodStatus(phase="Failed" if is_rejected else "Running", start_time="now"),
            )
        )
        return matches

    def _allocate(self, admitted: Pod, fails_at: int) -> list[Match]:
        matches = []
        for place, (name, units) in enumerate(_sizes(admitted)):
            if place == fails_at:
                self.holders.pop(admitted.uid, None)
                break
            match = find([*self.listed.values()], self.holders, units, self.before)
            matches.append(match)
            self.before = match.admission
            self.holders.setdefault(admitted.uid, set()).add(name)
        return matches


def _sizes(of: Pod) -> list[tuple[str, int]]:
    return [(container.name, container.units) for container in containers_of(of) if container.units]


def with_sidecars(made: Pod) -> Pod:
    inits = tuple(
        msgspec.structs.replace(each, restart_policy="Always") for each in made.init_containers
    )
    spec = msgspec.structs.replace(made.spec, init_containers=inits)
    return NodePod.of(msgspec.structs.replace(made, spec=spec))


@st.composite
def batches(draw) -> list[Pod]:
    """Pods in the order of their admission: creation's, in each group that arrives together."""
    pods = []
    for group in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 6))):
            number = len(pods)
            made = pod(
                f"p{number}",
                draw(st.lists(AMOUNTS, min_size=1, max_size=3)),
                init=draw(st.lists(AMOUNTS, max_size=2)),
                created=created(number),
                assume_time=draw(st.integers(1, 10**18)),
                seen=seen(1000 * group + draw(st.integers(0, 4))),
                labels={"aliyun.com/gpu-count": "2"} if draw(st.booleans()) else None,
            )
            pods.append(with_sidecars(made) if draw(st.booleans()) else made)
    return pods


@settings(max_examples=150, deadline=None)
@given(batches(), st.data(), st.integers(0, 8))
def test_every_allocate_is_for_the_admitted_pod_among_equal_pods(pods, data, lag) -> None:
    kubelet = Kubelet(lag)
    is_one_second = data.draw(st.booleans())  # of creation: then each pod's Allocate must be seen
    for admitted in pods:
        over = not is_one_second and data.draw(st.booleans())
        if is_one_second:
            meta = msgspec.structs.replace(admitted.metadata, creation_timestamp=created(0))
            admitted = msgspec.structs.replace(admitted, metadata=meta)  # noqa: PLW2901
        fails_at = data.draw(st.integers(1, 4))
        matches = kubelet.admit(admitted, over=over, fails_at=fails_at)
        wanted = [] if over else [name for name, _ in _sizes(admitted)][:fails_at]
        assert [(m.pod.uid, m.container) for m in matches] == [(admitted.uid, n) for n in wanted]


@settings(max_examples=100, deadline=None)
@given(batches(), st.data())
def test_the_admitted_pod_is_always_among_the_candidates(pods, data) -> None:
    """Created in the same second, being deleted, or admitted by a plugin that has just started."""
    kubelet = Kubelet(lag=99)
    for admitted in pods:
        meta = msgspec.structs.replace(
            admitted.metadata,
            creation_timestamp=created(0),
            deletion_timestamp=data.draw(st.sampled_from([None, "2026-11-21T10:00:09Z"])),
        )
        admitted = msgspec.structs.replace(admitted, metadata=meta)  # noqa: PLW2901
        if data.draw(st.booleans()):
            kubelet.before = None
        for match in kubelet.admit(admitted, over=data.draw(st.booleans())):
            assert admitted.uid in {candidate.pod.uid for candidate in match.candidates}


def moved(before: Pod, *, assumed: int, hours: int) -> Pod:
    """The pod as on a master, or a node, whose clock is otherwise."""
    head, _, tail = before.annotations[ANNOTATION_SEEN].partition("T10:")
    annotations = {
        **before.annotations,
        ANNOTATION_ASSUME_TIME: str(assumed),
        ANNOTATION_SEEN: f"{head}T{hours:02d}:{tail}",
    }
    meta = msgspec.structs.replace(before.metadata, annotations=annotations)
    return msgspec.structs.replace(before, metadata=meta)


@settings(max_examples=50, deadline=None)
@given(batches(), st.data(), st.integers(0, 23))
def test_no_clock_of_another_machine_changes_the_pod_of_an_allocate(pods, data, hours) -> None:
    plain, skewed = Kubelet(lag=3), Kubelet(lag=3)
    for admitted in pods:
        assumed = data.draw(st.sampled_from([0, 1, 10**18, 2**63, 10**31]))
        over = data.draw(st.booleans())
        usual = plain.admit(admitted, over=over)
        other = skewed.admit(moved(admitted, assumed=assumed, hours=hours), over=over)
        assert [(m.pod.uid, m.container) for m in usual] == [
            (m.pod.uid, m.container) for m in other
        ]


def test_a_restarting_container_is_never_mistaken_for_a_new_one() -> None:
    kubelet = Kubelet()
    runs, waits = pod("runs", 4, created=created(1)), pod("waits", 4, created=created(0))
    kubelet.admit(runs)
    (match,) = kubelet.admit(waits)
    assert match.pod is waits
    with pytest.raises(NoMatch):  # the checkpoint is lost, and one that runs is asked for again
        find([*kubelet.listed.values()], {waits.uid: {"app-0"}}, 4, match.admission)


def test_a_pod_deleted_before_its_admission_leaves_the_next_alone() -> None:
    kubelet = Kubelet(lag=99)
    gone = pod("gone", 4, created=created(0), deleted="2026-11-21T10:00:09Z")
    kubelet.admit(gone, over=True)
    (match,) = kubelet.admit(pod("next", 4, created=created(1)))
    assert match.pod.metadata.name == "next"
    del kubelet.listed[gone.uid]
    (match,) = kubelet.admit(pod("last", 4, created=created(2)))
    assert match.pod.metadata.name == "last"
