"""The documented commands of Helm render, and files of values go together in one order."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.markdown import Command, all_commands
from tests.unit.daemonset.test_chart import CHART, ROOT, helm, of_kind, rendered, values_of

OPERATOR = "gpu-operator"
PLATFORMS = sorted({each.stem for each in (CHART / "values").glob("*.yaml")} - {OPERATOR, "kind"})
INSTALLS = [each for each in all_commands() if each.text.startswith("helm install")]

pytestmark = pytest.mark.usefixtures("helm")


def plugin(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = of_kind(objects, "DaemonSet", "gpushare-deviceplugin")
    return found["spec"]["template"]["spec"]


@pytest.mark.parametrize("command", INSTALLS, ids=lambda each: each.place)
def test_what_a_documented_command_installs_can_be_rendered(command: Command):
    flags = re.findall(r"--(values|set) '?([^' ]+)'?", command.text)
    words = [(f"--{name}", str(ROOT / text) if name == "values" else text) for name, text in flags]
    objects = rendered({}, *(word for pair in words for word in pair))
    image = plugin(objects)["containers"][0]["image"]
    assert image.startswith("registry.example.com/team/gpushare:") == ("image.repo" in command.text)
    assert ("imagePullSecrets" in plugin(objects)) == ("pullSecrets" in command.text)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_gpu_operators_values_replace_a_platforms_runtime(platform: str):
    objects = rendered(values_of(platform), "--values", str(CHART / f"values/{OPERATOR}.yaml"))
    assert plugin(objects)["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize("platform", ["aks", "eks"])
def test_the_other_order_is_refused(platform: str):
    file: Path = CHART / f"values/{platform}.yaml"
    with pytest.raises(AssertionError, match=r"name gpu-operator.yaml after the file of your"):
        helm("template", values_of(OPERATOR), "--values", str(file))
