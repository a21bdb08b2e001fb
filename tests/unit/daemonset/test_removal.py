"""``gpushare uninstall`` removes everything that an installation adds."""

from copy import deepcopy
from typing import Any

import pytest
import yaml

from deviceplugin import settings
from gpushare.errors import RecordError
from gpusharectl.uninstall import rules
from tests.unit.daemonset.kustomizations import BASE, EVERY, ROOT
from tests.unit.daemonset.test_chart import rendered

KINDS = (*rules.POLICIES, *rules.PROGRAMS, *rules.REST)
SYSTEM = "gpushare-system"


def goes(described: dict[str, Any]) -> bool:
    meta = described["metadata"]
    if described["kind"] == "Namespace":
        return bool(meta["name"] == SYSTEM)
    where = meta.get("namespace", "")
    return any(
        kind.name == described["kind"]
        and (SYSTEM if kind.namespace == "*" else kind.namespace) == where
        and kind.is_ours(meta["name"])
        for kind in KINDS
    )


@pytest.mark.parametrize("folder", EVERY)
def test_every_object_goes(render, folder):
    assert [each for each in render(folder).all if not goes(each)] == []


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize(
    ("sets", "certificates"), [("webhook", "chart"), ("policy", "cert-manager")]
)
def test_everything_that_the_chart_can_install_goes(sets, certificates):
    on = {"enabled": True}
    values = {
        "certificates": {"source": certificates},
        "scheduler": "second",
        "secondScheduler": {"setSchedulerName": sets},
        "criticalPodsQuota": True,
        "networkPolicy": True,
        "gates": {**on, "by": sets},
        "avoidGpuNodes": True,
        "preemption": on,
        "plugin": {"startupTaint": True},
        "reading": on,
        "monitoring": {"podMonitor": on, "prometheusRule": on, "dashboard": on},
    }
    there = rendered(values)
    secrets = [each["spec"]["secretName"] for each in there if each["kind"] == "Certificate"]
    there += [{"kind": "Secret", "metadata": {"name": n, "namespace": SYSTEM}} for n in secrets]
    assert len(secrets) == (3 if certificates == "cert-manager" else 0)
    assert [each for each in there if not goes(each)] == []


def test_what_was_applied_for_prometheus_goes():
    scraped = list(yaml.safe_load_all((ROOT / "monitoring" / "scrape.yaml").read_text()))
    assert len(scraped) == 6
    assert [each for each in scraped if not goes(each)] == []


def test_a_plugin_that_mounts_other_folders_is_refused_with_what_is_missing(render):
    plugin = deepcopy(render(BASE).one("DaemonSet", rules.PLUGIN))
    spec = plugin["spec"]["template"]["spec"]
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "state"]
    with pytest.raises(RecordError, match="no volume state"):
        rules.cleaner(plugin, ["n1"])


@pytest.mark.parametrize("folder", EVERY)
def test_the_cleaner_has_the_plugins_folders_and_flags_that_it_takes(render, folder):
    plugin = render(folder).one("DaemonSet", rules.PLUGIN)
    made = rules.cleaner(plugin, ["n1", "n2"])["spec"]["template"]["spec"]
    [container] = made["initContainers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each["hostPath"]["path"] for each in made["volumes"]}
    assert mounts.keys() == volumes.keys() == {"device-plugins", "cdi", "state"}
    said = settings.read(container["command"][1:], {"NODE_NAME": "n1"})
    assert said.cleans
    assert str(said.device_plugin_dir) == mounts["device-plugins"]
    assert str(said.cdi_dir) == mounts["cdi"]
    assert volumes["state"] + "/" + said.state_dir.name == "/var/lib/gpushare"
    assert str(said.state_dir.parent) == mounts["state"]
    assert made["containers"][0]["image"] == container["image"]
    assert "runtimeClassName" not in made


def test_the_cleaner_looks_where_the_charts_values_have_the_plugins_folders():
    paths = {"devicePlugins": "/k/plugins", "cdi": "/var/cdi/dynamic", "state": "/data/gpus"}
    (plugin,) = [
        each
        for each in rendered({"plugin": {"paths": paths}})
        if each["metadata"]["name"] == rules.PLUGIN and each["kind"] == "DaemonSet"
    ]
    [container] = rules.cleaner(plugin, ["n1"])["spec"]["template"]["spec"]["initContainers"]
    said = settings.read(container["command"][1:], {"NODE_NAME": "n1"})
    assert [str(said.device_plugin_dir), str(said.cdi_dir)] == ["/k/plugins", "/var/cdi/dynamic"]
    assert said.state_dir.name == "gpus"
