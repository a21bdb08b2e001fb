"""A release removes our gate and no other, and only narrows where the pod may go."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.gates.patch import (
    MOST_NODES,
    release_patch,
    takes_short_list,
)
from gpushare.contract import ANNOTATION_SLOT, GATE_ADMISSION
from gpushare.objects.model import Pod, PodSpec
from gpushare.objects.scheduling import Affinity
from tests import builders

names = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
terms = st.lists(
    st.fixed_dictionaries(
        {
            "matchExpressions": st.lists(
                st.fixed_dictionaries({"key": names, "operator": st.just("Exists")}), max_size=2
            )
        }
    ),
    max_size=3,
)
affinities = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.fixed_dictionaries(
            {},
            optional={
                "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                    {"nodeSelectorTerms": terms}
                ),
            },
        ),
        "podAffinity": st.just({}),
    },
)


def gated(others: list[str], selector: dict[str, str] | None, affinity: object) -> Pod:
    spec = {
        "schedulingGates": [{"name": name} for name in (GATE_ADMISSION, *others)],
        "nodeSelector": selector,
        "affinity": affinity,
    }
    decoded = msgspec.convert(spec, PodSpec)
    return msgspec.structs.replace(builders.pod("p"), spec=decoded)


pods = st.builds(
    gated,
    st.lists(names, max_size=3),
    st.none() | st.dictionaries(names, names, max_size=3),
    st.none() | affinities,
)


def own_terms(pod: Pod) -> int:
    affinity = pod.spec.affinity or Affinity()
    required = affinity.node_affinity and affinity.node_affinity.required
    return len(required.node_selector_terms or ()) if required else 0


@given(
    pods,
    names,
    st.lists(st.text(), max_size=4),
    st.none() | st.tuples(names, names),
    st.lists(names, max_size=20),
)
def test_a_patch_touches_our_gate_the_hint_and_the_places_of_exactly_this_pod(
    pod, node, cards, zone, nodes
):
    patch = release_patch(pod, node=node, cards=cards, zone=zone, nodes=nodes)
    metadata, spec = patch.pop("metadata"), patch.pop("spec")
    assert not patch
    assert metadata.pop("uid") == pod.uid
    assert metadata.pop("annotations").keys() == {ANNOTATION_SLOT}
    assert not metadata
    assert spec.pop("schedulingGates") == [{"$patch": "delete", "name": GATE_ADMISSION}]
    assert spec.pop("nodeSelector", None) == (None if zone is None else dict([zone]))
    affinity = spec.pop("affinity", None)
    assert not spec
    assert (affinity is not None) == bool(nodes and own_terms(pod) == 0)
    if affinity is not None:
        [(kind, required)] = affinity.pop("nodeAffinity").items()
        assert not affinity
        assert kind.startswith("required")
        fields = [each["matchFields"] for each in required["nodeSelectorTerms"]]
        assert [field["values"] for [field] in fields] == [[name] for name in nodes[:MOST_NODES]]


@given(pods)
def test_a_pod_with_terms_of_its_own_gets_no_short_list(pod):
    assert takes_short_list(pod) == (own_terms(pod) == 0)


@given(pods)
def test_without_a_slot_a_patch_removes_the_gate_and_changes_nothing_else(pod):
    assert release_patch(pod) == {
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": [{"name": GATE_ADMISSION, "$patch": "delete"}]},
    }
