"""What Prometheus would read of a cluster at work is what docs/monitoring.md promises."""

import base64
import json

import pytest
import yaml

from extender.server.authorization import Authorizer, Denied, Question
from gpushare.clock import SystemClock
from gpushare.kube.client import Kube
from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.gpushare import NAMESPACE, ROOT, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import wait_established
from tests.metrics_table import differences, rows

pytestmark = pytest.mark.cluster

POD_MONITORS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PodMonitor, plural: podmonitors}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


def series(page: str) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_a_cluster_shows_exactly_the_documented_metrics(gpushare: Gpushare, pods: Workloads):
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
        seconds=60,
    )
    page = extender()
    assert differences(page, rows("Extender")) == []
    shown = series(page)
    assert shown["gpushare_extender_pending_pods"] == 1
    assert shown["gpushare_extender_pending_least_units"] == 20000
    assert shown[f'gpushare_node_used_units{{node="{node}"}}'] == 4000
    assert shown['gpushare_namespace_used_bytes{namespace="default"}'] == 4000 * 2**20
    assert shown['gpushare_namespace_pending_pods{namespace="default"}'] == 1
    plugin = gpushare.plugin_metrics(node)
    assert differences(plugin, rows("Device plugin")) == []


async def test_the_account_for_prometheus_may_read_metrics_and_nothing_else(gpushare: Gpushare):
    cluster = gpushare.cluster
    cluster.kubectl("apply", "-f", "-", stdin=POD_MONITORS)
    wait_established(cluster, "podmonitors.monitoring.coreos.com")
    objects = str(ROOT / "monitoring" / "scrape.yaml")
    cluster.kubectl("apply", "-f", objects)
    try:
        token = base64.b64decode(wait_for_token(cluster)).decode()
        account = cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
        async with Kube.connect(str(account)) as kube:
            authorizer = Authorizer(kube, SystemClock())
            await authorizer.check(token, Question(path="/metrics"))
            with pytest.raises(Denied):
                await authorizer.check(token, Question("list"))
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", objects)
        cluster.kubectl("delete", "-f", "-", stdin=POD_MONITORS)


@pytest.mark.parametrize("kind", ["sm", "memory"])
def test_the_api_server_takes_the_sample_autoscalers(cluster: Cluster, kind: str):
    """No adapter runs here: what its rules compute is tested with promtool."""
    path = ROOT / "daemonset" / "samples" / f"hpa-{kind}.yaml"
    cluster.kubectl("apply", "-f", str(path))
    try:
        found = json.loads(cluster.kubectl("get", "hpa", "gpushare-sample", "-o", "json"))
        wanted = yaml.safe_load(path.read_text())
        assert found["apiVersion"] == "autoscaling/v2"
        assert found["spec"] == wanted["spec"]
        del wanted["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
        with pytest.raises(CommandError, match="averageValue"):
            cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(wanted))
    finally:
        cluster.kubectl("delete", "-f", str(path))


def wait_for_token(cluster: Cluster) -> str:
    words = ("-n", NAMESPACE, "get", "secret", "gpushare-metrics", "-o", "jsonpath={.data.token}")
    wait_until(
        "the token of the account", lambda: None if cluster.kubectl(*words) else "none", seconds=60
    )
    return cluster.kubectl(*words)
