"""Examples in the documents are valid, and the reference names everything on the wire."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from extender.settings.configuration import Configuration, LeaderElection
from extender.settings.file import parse
from extender.settings.listeners import Admission, ReadingListener
from gpushare import contract
from gpushare.annotations import inventory
from gpusharectl.certificates import files as certificates
from tests import markdown

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return [each.text for each in markdown.blocks(path) if each.language == language]


def examples() -> list[Any]:
    """Return the readers and texts of all JSON and YAML."""
    return [
        pytest.param(read, text, id=f"{path.name}-{language}-{number}")
        for path in markdown.documents()
        for language, read in (("json", json.loads), ("yaml", yaml.safe_load_all))
        for number, text in enumerate(blocks(path, language))
    ]


def configurations(path: Path) -> list[str]:
    """Return the YAML blocks whose keys are all keys of the extender's configuration."""
    keys = {field.encode_name for field in msgspec.structs.fields(Configuration)}
    return [
        text
        for text in blocks(path, "yaml")
        if isinstance(found := next(yaml.safe_load_all(text)), dict) and set(found) <= keys
    ]


def test_every_name_on_the_wire_is_in_the_reference():
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    names = {
        name: str(value)
        for name, value in vars(contract).items()
        if name.isupper() and isinstance(value, str | int)
    }
    assert names
    assert {name: value for name, value in names.items() if value not in text} == {}


def test_the_plugin_writes_the_inventory_as_in_the_reference():
    (example,) = blocks(DOCS / "reference/labels-and-annotations.md", "json")
    found = inventory.decode(example)
    assert json.loads(inventory.encode(found)) == json.loads(example)


@pytest.mark.parametrize(("read", "text"), examples())
def test_examples_can_be_parsed(read, text):
    list(read(text))


def test_examples_of_the_extenders_configuration_are_valid():
    found = [text for path in markdown.documents() for text in configurations(path)]
    assert len(found) >= 2
    for text in found:
        parse(text.encode())


def test_the_instructions_have_the_shipped_configuration_of_kubeadm():
    shipped = (ROOT / "daemonset/scheduler/kubeadm.yaml").read_text()
    assert shipped in blocks(DOCS / "install.md", "yaml")


def test_the_kustomization_in_the_instructions_renders_with_another_unit_for_both(render_own):
    found = blocks(DOCS / "installation-options.md", "yaml")
    (whole,) = [each for each in found if yaml.safe_load(each).get("kind") == "Kustomization"]
    (component,) = [each for each in found if "configMapGenerator:" in each]
    (added,) = [each for each in found if each.startswith("patches:")]
    text = yaml.safe_dump({**yaml.safe_load(whole), "components": ["configuration"]}) + added
    shipped = (ROOT / "daemonset/base/configuration/extender.yaml").read_text()
    own = shipped.replace("memoryUnit: GiB", "memoryUnit: 256MiB")
    files = {"kustomization.yaml": component, "extender.yaml": own}
    objects = render_own(text, {f"configuration/{name}": each for name, each in files.items()})
    plugin = objects.container("deviceplugin")
    assert [each for each in plugin["args"] if "unit" in each] == ["--memory-unit=256MiB"]
    assert objects.one("ConfigMap")["data"] == {"extender.yaml": own}
    found = parse(own.encode())
    assert (found.memory_unit, found.leader_election is None) == ("256MiB", False)
    for name in ("deviceplugin", "extender"):
        assert objects.container(name)["image"] == "registry.example.com/team/gpushare:0.1.0"
    volumes = {each["name"]: each for each in objects.pod("extender")["volumes"]}
    named = volumes["configuration"]["configMap"]["name"]
    assert named == objects.one("ConfigMap")["metadata"]["name"]


def test_the_configuration_in_the_reference_has_the_defaults():
    (text,) = blocks(DOCS / "reference/settings.md", "yaml")
    found = parse(text.encode())
    election, reading = found.leader_election, found.listen.reading
    assert election == LeaderElection(address=election.address, tls=election.tls)
    assert reading == ReadingListener(tls=reading.tls)
    admission = found.listen.admission
    assert admission == Admission("0.0.0.0", 10250, admission.tls)
    listen = replace(found.listen, deciding_tls=None, reading=None, admission=None)
    assert replace(found, listen=listen, leader_election=None) == Configuration()


def test_the_listeners_in_the_instructions_can_be_opened():
    (listeners,) = [
        each for each in configurations(DOCS / "security.md") if each.startswith("listen:")
    ]
    found = parse(listeners.encode()).listen
    assert found.reading is not None
    assert found.deciding_tls is not None
    assert found.deciding_tls.tls.allowed_names == (certificates.SCHEDULER,)
