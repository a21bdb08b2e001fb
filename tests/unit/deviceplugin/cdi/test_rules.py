"""The binding is late where CDI names are certainly resolved, else early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cdi.rules import Choice, Probe, choose, late_needs_edits
from gpushare.objects.model import NodeSystemInfo

READ, UNREAD, UNKNOWN = Probe.READ, Probe.UNREAD, Probe.UNKNOWN


def info(runtime: str, kubelet: str = "v1.34.4") -> NodeSystemInfo:
    return NodeSystemInfo(container_runtime_version=runtime, kubelet_version=kubelet)


@pytest.mark.parametrize(
    ("runtime", "read", "unread", "unknown"),
    [
        ("containerd://2.2.9", "late", "early+", "late"),
        ("containerd://2.0.0-rc.1", "late", "early+", "late"),
        ("containerd://v2.1.4-k3s1", "late", "early+", "late"),
        ("cri-o://1.34.0", "early", "early", "early"),
        ("containerd://1.7.20", "early+", "early+", "early+"),
        ("containerd://1.7.12", "early+", "early+", "early+"),
        ("containerd://1.7.27-k3s1", "early+", "early+", "early+"),
        ("containerd://1.7.11", "early", "early", "early"),
        ("containerd://1.7", "early", "early", "early"),
        ("containerd://1.6.20~ds1", "early", "early", "early"),
        ("containerd://1.10.0", "early+", "early+", "early+"),
        ("docker://28.3.0", "early", "early", "early"),
        ("containerd://Unknown", "early", "early", "early"),
        ("", "early", "early", "early"),
        ("x" * 10_000, "early", "early", "early"),
        ("containerd://2.2" + "x" * 10_000, "late", "early+", "late"),
    ],
)
def test_a_runtime_gets_the_binding_that_it_can_serve(runtime, read, unread, unknown) -> None:
    found = [choose(info(runtime), probe) for probe in (READ, UNREAD, UNKNOWN)]
    assert [c.binding + "+" * c.names_cdi_too for c in found] == [read, unread, unknown]
    assert all(len(choice.why) < 200 for choice in found)


@pytest.mark.parametrize("kubelet", ["v1.28.15", "v1.27.3-eks-a5565ad", "1.9.0"])
def test_a_kubelet_that_passes_no_cdi_names_on_binds_early(kubelet) -> None:
    found = choose(info("containerd://2.2.9", kubelet), READ)
    assert found == Choice(
        "early", f"kubelet {kubelet} passes no CDI names on; 1.29 does", names_cdi_too=False
    )


def test_from_kubernetes_1_29_on_cdi_names_are_passed_on() -> None:
    assert choose(info("containerd://2.2.9", "v1.29.0"), READ).binding == "late"


def test_until_the_node_is_read_it_stays_as_it_was() -> None:
    for probe in Probe:
        for last in ("late", "early"):
            found = choose(None, probe, last=last)
            assert (found.binding, found.names_cdi_too) == (last, False)
            assert "stays unchanged" in found.why


@pytest.mark.parametrize(
    "runtime", ["containerd://1.7.27", "docker://28.3.0", "", "podman://5", "containerd://main"]
)
@pytest.mark.parametrize("last", [None, "late", "early"])
def test_a_file_that_anybody_reads_lets_no_runtime_bind_late_that_may_not_resolve_names(
    runtime, last
) -> None:
    for probe in Probe:
        assert choose(info(runtime), probe, last=last).binding == "early"
        assert choose(info(runtime, "v1.x"), probe, last=last).binding == "early"


@pytest.mark.parametrize("kubelet", ["v1.29.0", "v1.31.6", "v1.34.4"])
def test_on_cri_o_shares_are_named_only_with_nvidias_edits(kubelet) -> None:
    node = info("cri-o://1.31.1", kubelet)
    assert late_needs_edits(node)
    for probe in Probe:
        found = choose(node, probe)
        assert (found.binding, found.names_cdi_too, found.may_change) == ("early", False, True)
        assert choose(node, probe, needs_cdi=True).binding == "late"
    assert choose(node, READ, has_edits=True).binding == "late"


@pytest.mark.parametrize(
    "node", [None, info("containerd://1.7.35"), info("containerd://2.2.9", "v1.31.6")]
)
def test_elsewhere_the_variables_of_shares_reach_nvidias_runtime(node) -> None:
    assert not late_needs_edits(node)


def test_cdi_files_are_written_for_no_containerd_that_cannot_read_them() -> None:
    for needs_cdi in (True, False):
        found = choose(info("containerd://1.7.11"), READ, needs_cdi=needs_cdi)
        assert (found.binding, found.names_cdi_too) == ("early", False)
        assert "1.7.12" in found.why


def test_what_cannot_be_read_is_named() -> None:
    assert "kubelet version 'newest' is invalid" in choose(info("cri-o://1.30", "newest"), READ).why
    assert "'containerd://latest'" in choose(info("containerd://latest"), READ).why


versions = st.one_of(
    st.text(max_size=12),
    st.from_regex(r"v?[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]+)?(-\w+)?", fullmatch=True),
)
nodes = st.none() | st.builds(
    lambda name, runtime, kubelet: info(f"{name}://{runtime}", kubelet),
    st.sampled_from(["containerd", "cri-o", "docker", ""]),
    versions,
    versions,
)
bindings = st.sampled_from(["late", "early"])


@given(nodes, st.sampled_from(Probe), bindings, st.none() | bindings, st.booleans())
def test_what_is_forced_wins_over_everything(node, probe, forced, last, needs_cdi) -> None:
    found = choose(node, probe, forced=forced, last=last, needs_cdi=needs_cdi)
    assert (found.binding, found.names_cdi_too) == (forced, False)


@given(nodes, st.sampled_from(Probe), st.none() | bindings, st.booleans())
def test_every_choice_has_a_reason_and_only_uncertain_ones_name_cdi_too(
    node, probe, last, needs_cdi
) -> None:
    found = choose(node, probe, last=last, needs_cdi=needs_cdi)
    assert found.why
    if found.names_cdi_too:
        assert found.binding == "early"
    if found.binding == "late" and not needs_cdi and node is not None:
        assert node.container_runtime_version.startswith(("containerd://", "cri-o://"))


@given(nodes, st.sampled_from(Probe), st.none() | bindings)
def test_where_early_binding_is_of_no_use_it_is_chosen_only_where_late_cannot_work(
    node, probe, last
) -> None:
    found = choose(node, probe, last=last, needs_cdi=True)
    if found.binding == "early":
        assert "no CDI names" in found.why or "1.7.12" in found.why
        assert choose(node, READ).binding == "early"
