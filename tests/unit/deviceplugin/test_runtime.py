"""Which binding a node gets: late where CDI names are resolved for sure, else early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.runtime import Choice, Probe, choose
from gpushare.objects import NodeSystemInfo

READ, UNREAD, UNKNOWN = Probe.READ, Probe.UNREAD, Probe.UNKNOWN


def info(runtime: str, kubelet: str = "v1.34.4") -> NodeSystemInfo:
    return NodeSystemInfo(container_runtime_version=runtime, kubelet_version=kubelet)


@pytest.mark.parametrize(
    ("runtime", "read", "unread", "unknown"),
    [
        ("containerd://2.2.9", "late", "early+", "late"),
        ("containerd://2.0.0-rc.1", "late", "early+", "late"),
        ("containerd://v2.1.4-k3s1", "late", "early+", "late"),
        ("cri-o://1.30.1", "late", "early+", "late"),
        ("containerd://1.7.20", "late", "early+", "early"),
        ("containerd://1.7.27-k3s1", "late", "early+", "early"),
        ("containerd://1.6.20~ds1", "early", "early", "early"),
        ("containerd://1.10.0", "late", "early+", "early"),
        ("docker://27.1.1", "late", "early", "early"),
        ("containerd://Unknown", "late", "early", "early"),
        ("", "late", "early", "early"),
        ("x" * 10_000, "late", "early", "early"),
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
        "early", f"kubelet {kubelet} passes no CDI names on, as 1.29 does", names_cdi_too=False
    )


def test_from_kubernetes_1_29_on_cdi_names_are_passed_on() -> None:
    assert choose(info("containerd://2.2.9", "v1.29.0"), READ).binding == "late"


@pytest.mark.parametrize("node", [None, info(""), info("docker://27"), info("cri-o://1.30", "x")])
def test_where_the_runtime_cannot_be_told_it_stays_as_it_was(node) -> None:
    for probe in Probe:
        for last in ("late", "early"):
            found = choose(node, probe, last=last)
            assert (found.binding, found.names_cdi_too) == (last, False)
            assert "stays as it was" in found.why


def test_what_cannot_be_read_is_named() -> None:
    assert "kubelet version 'newest' is none" in choose(info("cri-o://1.30", "newest"), READ).why
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
def test_every_choice_has_a_reason_and_the_cdi_name_goes_only_with_doubt(
    node, probe, last, needs_cdi
) -> None:
    found = choose(node, probe, last=last, needs_cdi=needs_cdi)
    assert found.why
    if found.names_cdi_too:
        assert (found.binding, probe) == ("early", UNREAD)


@given(nodes, st.sampled_from(Probe), st.none() | bindings)
def test_where_early_binding_is_of_no_use_it_is_chosen_only_where_late_cannot_work(
    node, probe, last
) -> None:
    found = choose(node, probe, last=last, needs_cdi=True)
    if found.binding == "early":
        assert "no CDI names" in found.why
        assert choose(node, READ).binding == "early"
