"""A kubelet that refuses its list of pods, as before Kubernetes 1.33: no card is guessed."""

import re
from collections.abc import Iterator

import pytest

from localcluster.gpushare import CARD_MIB, NAMESPACE, Binding, Gpushare
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import env_is_card_on_record, sums_are_right

pytestmark = pytest.mark.cluster

NODE = "n3"


@pytest.fixture
def without_right(request: pytest.FixtureRequest, gpushare: Gpushare) -> Iterator[Gpushare]:
    """The node's plugin shows the kubelet a token that may not `get nodes/pods`."""
    stranger = gpushare.cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
    binding: Binding = request.param
    token = f"--kubelet-token={stranger.with_suffix('.token')}"
    gpushare.restart_plugin(NODE, token, binding=binding)
    yield gpushare
    gpushare.restart_plugin(NODE, binding="auto")


@pytest.mark.parametrize("without_right", ["late"], indirect=True)
def test_late_binding_still_gives_every_pod_its_own_card(without_right: Gpushare, pods: Workloads):
    names = [f"equal-{place}" for place in range(4)]
    pods.run(*(pod(name, CARD_MIB // 2 - 1, node=NODE) for name in names))
    on_record = env_is_card_on_record(pods, *names)
    assert sorted(on_record.values()) == [f"GPU-{NODE}-0"] * 2 + [f"GPU-{NODE}-1"] * 2
    sums_are_right(without_right, pods)


@pytest.mark.parametrize("without_right", ["early"], indirect=True)
def test_early_binding_finds_a_unique_pod_by_its_watch(without_right: Gpushare, pods: Workloads):
    for name, units in (("one", CARD_MIB // 2 + 1), ("two", CARD_MIB // 2 + 2)):
        pods.run(pod(name, units, node=NODE))
    on_record = env_is_card_on_record(pods, "one", "two")
    assert sorted(on_record.values()) == [f"GPU-{NODE}-0", f"GPU-{NODE}-1"]
    counted = without_right.plugin_metrics(NODE)
    assert re.search(r'pods_found_total\{how="watch"\} 2\.0', counted)
    log = without_right.cluster.log_path(f"deviceplugin-{NODE}").read_text()
    assert "get nodes/pods" in log
