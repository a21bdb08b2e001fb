"""Prometheus finds exactly both programs of every installation."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.daemonset.test_chart import SAME, rendered

MONITORING = Path(__file__).parents[3] / "monitoring"
IPV4, IPV6 = "10.0.0.5", "fd00::5"
Installed = dict[str, list[dict[str, Any]]]

pytestmark = pytest.mark.usefixtures("helm")


@dataclass(frozen=True)
class Job:
    """A scrape job: labels of pods, a port, and relabelings."""

    labels: dict[str, set[str]]
    port: str | None
    relabelings: list[dict[str, Any]]

    def takes(self, pod: dict[str, Any]) -> bool:
        labels = pod["metadata"]["labels"]
        return all(labels.get(key) in values for key, values in self.labels.items())


def monitors() -> Iterator[Job]:
    """Yield the jobs that the operator makes of the PodMonitors."""
    for each in yaml.safe_load_all((MONITORING / "scrape.yaml").read_text()):
        if each["kind"] != "PodMonitor":
            continue
        selector = each["spec"]["selector"]
        labels = {key: {value} for key, value in selector.get("matchLabels", {}).items()}
        for wanted in selector.get("matchExpressions", []):
            assert wanted["operator"] == "In"
            labels[wanted["key"]] = set(wanted["values"])
        for endpoint in each["spec"]["podMetricsEndpoints"]:
            relabelings = [
                {re.sub("([A-Z])", r"_\1", key).lower(): value for key, value in one.items()}
                for one in endpoint["relabelings"]
            ]
            yield Job(labels, endpoint.get("port"), relabelings)


def jobs() -> Iterator[Job]:
    """Yield the jobs without the operator."""
    for each in yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]:
        ((chosen,),) = [one["selectors"] for one in each["kubernetes_sd_configs"]]
        key, one, several = re.fullmatch(
            r"([\w./-]+)(?:=([\w-]+)| in \(([\w, -]+)\))", chosen["label"]
        ).groups()
        values = set(re.split(", *", several)) if several else {one}
        yield Job({key: values}, None, each["relabel_configs"])


def targets(pod: dict[str, Any], address: str) -> Iterator[dict[str, str]]:
    """Yield what Prometheus discovers of a pod: the ports of its containers, or a container."""
    host = f"[{address}]" if ":" in address else address
    for container in pod["spec"]["containers"]:
        found = {
            "__meta_kubernetes_pod_ip": address,
            "__meta_kubernetes_pod_node_name": "n1",
            "__meta_kubernetes_pod_container_name": container["name"],
        }
        for port in container.get("ports", []):
            name = {"__meta_kubernetes_pod_container_port_name": port["name"]}
            yield {**found, **name, "__address__": f"{host}:{port['containerPort']}"}
        if not container.get("ports"):
            yield {**found, "__address__": address}


def scraped(promtool: Path, job: Job, installed: Installed, folder: Path) -> list[list[str]]:
    """Return installation, address and node of the targets that Prometheus has relabelled."""
    found = [
        {**target, "installation": name}
        for name, pods in installed.items()
        for pod in pods
        if job.takes(pod)
        for address in (IPV4, IPV6)
        for target in targets(pod, address)
        if job.port in (None, target.get("__meta_kubernetes_pod_container_port_name"))
    ]
    static = [{"targets": [each.pop("__address__")], "labels": each} for each in found]
    wanted = {"job_name": "j", "static_configs": static, "relabel_configs": job.relabelings}
    file = folder / "prometheus.json"
    file.write_text(json.dumps({"scrape_configs": [wanted]}))
    # It always waits for that time.
    words = [promtool, "check", "service-discovery", "--timeout=2s", file, "j"]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    labels = [each["labels"] for each in json.loads(done.stdout) if each.get("labels")]
    shown = ("installation", "__address__", "node")
    return sorted([each.get(name, "") for name in shown] for each in labels)


@pytest.fixture
def installed(render) -> Installed:
    """Return the pods of every installation."""
    objects = {folder: render(folder).all for folder in SAME}
    objects |= {f"{folder} by the chart": rendered(SAME[folder]) for folder in SAME}
    return {
        name: [
            one["spec"]["template"] for one in each if one["kind"] in {"DaemonSet", "Deployment"}
        ]
        for name, each in objects.items()
    }


@pytest.mark.parametrize("form", [monitors, jobs], ids=["with-operator", "without"])
def test_prometheus_finds_both_programs_of_every_installation(promtool, installed, tmp_path, form):
    of_plugin, of_extender = (scraped(promtool, job, installed, tmp_path) for job in form())
    hosts = (IPV4, f"[{IPV6}]")
    names = sorted(installed)
    assert of_plugin == [[name, f"{host}:29767", "n1"] for name in names for host in hosts]
    assert of_extender == [[name, f"{host}:29768", ""] for name in names for host in hosts]
