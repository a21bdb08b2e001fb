"""A release removes our gate and no other, and only narrows where the pod may go."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.gates.patch import nomination_patch, release_patch
from gpushare.annotations.slot_hint import hinted_node, is_nominated
from gpushare.contract import ANNOTATION_SLOT, GATE_ADMISSION
from gpushare.objects.model import Pod, PodSpec
from tests import builders
from tests.unit.extender.scripted import changed

names = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)


def gated(others: list[str], selector: dict[str, str] | None) -> Pod:
    spec = {
        "schedulingGates": [{"name": name} for name in (GATE_ADMISSION, *others)],
        "nodeSelector": selector,
    }
    decoded = msgspec.convert(spec, PodSpec)
    return msgspec.structs.replace(builders.pod("p"), spec=decoded)


pods = st.builds(
    gated,
    st.lists(names, max_size=3),
    st.none() | st.dictionaries(names, names, max_size=3),
)


@given(
    pods,
    names,
    st.lists(st.text(), max_size=4),
    st.none() | st.tuples(names, names),
)
def test_a_patch_touches_our_gate_the_hint_and_the_places_of_exactly_this_pod(
    pod, node, cards, zone
):
    patch = release_patch(pod, node=node, cards=cards, zone=zone)
    metadata, spec = patch.pop("metadata"), patch.pop("spec")
    assert not patch
    assert metadata.pop("uid") == pod.uid
    assert metadata.pop("annotations").keys() == {ANNOTATION_SLOT}
    assert not metadata
    assert spec.pop("schedulingGates") == [{"$patch": "delete", "name": GATE_ADMISSION}]
    assert spec.pop("nodeSelector", None) == (None if zone is None else dict([zone]))
    assert not spec


@given(pods, names, st.lists(st.text(), max_size=4))
def test_a_nomination_is_known_as_ours_once_it_is_written(pod, node, cards):
    patch = nomination_patch(pod, node, cards)
    assert patch["metadata"]["uid"] == pod.uid
    written = changed(
        pod,
        {"annotations": pod.annotations | patch["metadata"]["annotations"]},
        status={"nominated_node_name": patch["status"]["nominatedNodeName"]},
    )
    assert hinted_node(written) == node
    assert is_nominated(written)
    assert not is_nominated(pod)
    assert not is_nominated(changed(written, status={"nominated_node_name": f"{node}-other"}))


@given(pods)
def test_without_a_slot_a_patch_removes_the_gate_and_changes_nothing_else(pod):
    assert release_patch(pod) == {
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": [{"name": GATE_ADMISSION, "$patch": "delete"}]},
    }
