"""What Prometheus would read of a cluster at work is what docs/monitoring.md promises."""

import pytest

from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.metrics_table import differences, rows

pytestmark = pytest.mark.cluster


def series(page: str) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_a_cluster_at_work_shows_every_metric_of_the_table_with_its_labels_and_no_other(
    gpushare: Gpushare, pods: Workloads
):
    pods.run(pod("runs", 4000))
    node, _ = gpushare.card_of("runs")
    pods.create(pod("too-large", 20000))
    reason = "no GPU of the node is large enough for aliyun.com/gpu-mem"
    waits = f'gpushare_extender_waiting_pods_by_reason{{reason="{reason}"}}'

    def extender() -> str:
        _, page = gpushare.call("GET", "/metrics")
        return str(page)

    wait_until(
        "the pod that is too large to be counted",
        lambda: None if series(extender())[waits] == 1 else "it is not",
        seconds=20,
    )
    page = extender()
    assert differences(page, rows("Extender")) == []
    shown = series(page)
    assert shown["gpushare_extender_pending_pods"] == 1
    assert shown["gpushare_extender_pending_least_units"] == 20000
    assert shown[f'gpushare_node_used_units{{node="{node}"}}'] == 4000
    plugin = gpushare.plugin_metrics(node)
    assert differences(plugin, rows("Device plugin")) == []
