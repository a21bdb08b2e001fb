"""What goes when gpushare is removed, and what is left alone."""

import pytest

from gpushare.objects.model import Node, NodeStatus, ObjectMeta
from gpusharectl.uninstall import rules
from gpusharectl.uninstall.rules import holders, marked, totals, traces, waiting
from tests.builders import annotated, legacy_node, node, pod

KINDS = (*rules.POLICIES, *rules.PROGRAMS, *rules.REST)


def plain(name: str, **labels: str) -> Node:
    annotations = {"kubeadm.alpha.kubernetes.io/cri-socket": "x"}
    return Node(
        ObjectMeta(name=name, labels=labels, annotations=annotations), NodeStatus({"cpu": "4"})
    )


OLDER = ("gpushare-schd-extender", "gpushare-device-plugin", "gpushare-device-plugin-ds")


@pytest.mark.parametrize(
    "name", [*OLDER, "", "my-gpushare-extender", "gpushare-extender-2", "kube-root-ca.crt"]
)
def test_objects_of_the_older_gpushare_and_of_users_are_left_alone(name):
    assert not any(kind.is_ours(name) for kind in KINDS)


def test_a_configmap_is_known_under_the_hash_that_kustomize_gives_it():
    [kind] = [each for each in KINDS if each.name == "ConfigMap"]
    assert kind.is_ours("gpushare-extender-configuration-d8k7f8dkb9")
    assert kind.path("here", "x") == "/api/v1/namespaces/here/configmaps/x"


def test_policies_go_first_and_rights_after_the_programs_that_need_them():
    order = [kind.name for kind in KINDS]
    assert order.index("ValidatingAdmissionPolicyBinding") == 0
    assert max(order.index(each) for each in ("DaemonSet", "Deployment")) < min(
        order.index(each) for each in ("ClusterRoleBinding", "RoleBinding", "ServiceAccount")
    )


def test_a_node_loses_all_that_is_ours_and_nothing_else():
    ours = node("n1", 8, 8)
    assert traces(ours, labels=True) == {
        "metadata": {"annotations": {"gpushare.aliyun.com/inventory": None}}
    }
    gone = {"aliyun.com/gpu-mem": None, "aliyun.com/gpu-count": None}
    assert totals(ours) == {"status": {"capacity": gone, "allocatable": gone}}
    assert (traces(plain("n2"), labels=True), totals(plain("n2"))) == ({}, {})


def test_labels_stay_unless_they_are_to_go():
    labelled = plain("n1", gpushare="true", other="x", **{"gpushare.aliyun.com/plugin": "new"})
    assert traces(labelled, labels=False) == {}
    gone = {"gpushare": None, "gpushare.aliyun.com/plugin": None}
    assert traces(labelled, labels=True) == {"metadata": {"labels": gone}}


def test_every_node_is_cleaned_where_the_plugin_has_been_or_would_be():
    there = [plain("labelled", gpushare="true"), node("inventory", 8), legacy_node("totals", 8, 1)]
    assert marked([plain("never"), *there]) == there


def test_a_node_with_totals_of_the_older_gpushare_is_told_from_what_ours_leaves():
    plugin = pod("plugin", None, node="starts", labels={"app.kubernetes.io/name": rules.PLUGIN})
    forgetting = {"aliyun.com/gpu-mem": "8"}  # and none of it allocatable
    nodes = [
        node("ours", 8),
        legacy_node("starts", 8, 1),
        legacy_node("older", 8, 1),
        legacy_node("zeros", 0, 1),
        Node(ObjectMeta(name="rest"), NodeStatus(forgetting, {"aliyun.com/gpu-mem": "0"})),
        Node(ObjectMeta(name="uncounted"), NodeStatus(forgetting, forgetting)),
        plain("never"),
    ]
    assert rules.of_older(nodes, [plugin], "default") == ["older", "uncounted"]


def test_only_live_pods_that_ask_hold_or_wait():
    asks = pod("runs", 4, node="n1", phase="Running")
    pods = [
        asks,
        pod("waits", 4),
        pod("ended", 4, node="n1", phase="Succeeded"),
        pod("other", None, node="n1", phase="Running"),
        annotated(asks, {}, name="another", namespace="a"),
    ]
    assert [each.key for each in holders(pods)] == ["a/another", "default/runs"]
    assert [each.key for each in waiting(pods)] == ["default/waits"]
