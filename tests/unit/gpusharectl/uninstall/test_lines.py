"""What is left of gpushare is listed exactly, and nothing that is not there."""

import pytest

from gpushare.objects.model import Node, ObjectMeta
from gpusharectl.uninstall import rules
from gpusharectl.uninstall.lines import Installed, not_installed, plan
from tests.builders import legacy_node, node, pod

PLUGIN = (rules.DAEMON_SETS, rules.PLUGIN)
EXTENDER = (rules.DAEMON_SETS, rules.EXTENDER)
OURS = "gpushare.aliyun.com/inventory, aliyun.com/gpu-mem, aliyun.com/gpu-count"
LABELLED = Node(ObjectMeta(name="n1", labels={"gpushare": "true"}))


@pytest.mark.parametrize(
    ("found", "labels", "is_there"),
    [
        (Installed(), True, False),
        (Installed(objects=[EXTENDER]), False, True),
        (Installed(releases=["sh.helm.release.v1.gpushare.v1"]), False, True),
        (Installed(namespace="gpushare-system"), False, True),
        (Installed(nodes=[node("n1", 8)]), False, True),
        (Installed(gated=[pod("a")]), False, True),
        (Installed(nodes=[LABELLED]), False, False),
        (Installed(nodes=[LABELLED]), True, True),
        (Installed(nodes=[legacy_node("old", 8, 1)], others=["old"]), True, False),
    ],
)
def test_gpushare_is_there_if_any_trace_would_be_removed(found, labels, is_there):
    assert found.is_there(labels=labels) == is_there


def test_without_gpushare_it_is_said_that_nothing_is_removed_and_what_stays():
    nodes = [LABELLED, legacy_node("old", 8, 1)]
    lines = [
        *not_installed(
            Installed(nodes=nodes, others=["old"]), "gpushare-system", keeps_namespace=False
        )
    ]
    assert lines[0].startswith("gpushare is not installed here: no namespace gpushare-system")
    assert lines[1:] == [
        "The label gpushare stays on n1; --labels removes it.",
        "aliyun.com/gpu-mem on old is Aliyun gpushare's.",
    ]
    assert len([*not_installed(Installed(), "gpushare-system", keeps_namespace=False)]) == 1


def test_of_a_whole_installation_everything_is_listed():
    found = Installed([PLUGIN, EXTENDER], ["release"], "gpushare-system", [node("n1", 8)])
    assert [*plan(found, labels=False)] == [
        "  DaemonSet gpushare-deviceplugin",
        "  DaemonSet gpushare-extender",
        "  Secret release",
        f"  from node n1: files, {OURS}",
        "  Namespace gpushare-system with everything in it",
    ]


def test_gated_pods_are_named():
    assert [*plan(Installed(gated=[pod("a"), pod("b")]), labels=False)] == [
        "  from pods: the scheduling gate gpushare.aliyun.com/admission: default/a, default/b"
    ]


def test_of_a_removal_in_part_only_the_rest_is_listed():
    found = Installed([EXTENDER], nodes=[node("n1", 8), LABELLED])
    assert [*plan(found, labels=False)][:-1] == [
        "  DaemonSet gpushare-extender",
        f"  from node n1: {OURS}",
    ]
    assert [*plan(found, labels=False)][-1].startswith("Files on nodes stay as they are")
    assert "  from node n1: gpushare" in plan(found, labels=True)


def test_a_zero_that_a_kubelet_left_is_listed_without_a_word_about_files():
    gone = legacy_node("n1", 0, 0)
    assert [*plan(Installed(nodes=[gone]), labels=False)] == [
        "  from node n1: aliyun.com/gpu-mem, aliyun.com/gpu-count"
    ]


def test_a_namespace_that_is_kept_is_not_said_to_be_missing():
    [line] = not_installed(Installed(), "gpushare-system", keeps_namespace=True)
    assert line.startswith("gpushare is not installed here: no object of gpushare")
    assert "gpushare-system" not in line
