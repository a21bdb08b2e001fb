"""What the documents state is what the programs do."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from deviceplugin import settings
from extender import certificates
from extender.settings.configuration import Configuration
from extender.settings.file import parse
from gpushare import contract
from gpushare.annotations import inventory
from gpushare.contract import EXTENDER_PORT
from gpushare.placement import reasons

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
QUOTED = r'`([\w-]+)`|"(.+)"'
DOCUMENTS = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
SOURCES = [*ROOT.glob("extender/**/*.py"), *ROOT.glob("deviceplugin/**/*.py")]


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    text = (DOCS / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def snippet(kind: str) -> dict:
    """The only YAML of this kind in the instructions."""
    (found,) = [
        each
        for each in map(yaml.safe_load, blocks("install.md", "yaml"))
        if each.get("kind") == kind
    ]
    return found


def test_every_name_on_the_wire_is_in_the_contract():
    text = (DOCS / "contract.md").read_text()
    names = {
        name: str(value)
        for name, value in vars(contract).items()
        if name.isupper() and isinstance(value, str | int)
    }
    assert names
    assert {name: value for name, value in names.items() if value not in text} == {}


def test_the_inventory_in_the_contract_is_one():
    (example,) = [
        each for each in blocks("contract.md", "json") if "unitMiB" in each and "tag" in each
    ]
    found = inventory.decode(example)
    assert json.loads(inventory.encode(found)) == json.loads(example)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_a_document_names_is_there(document):
    named = set(re.findall(r"`(test_\w+)`", (DOCS / document).read_text()))
    texts = [path.read_text() for path in ROOT.glob("tests/**/test_*.py")]
    there = {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}
    assert named <= there


def test_no_failure_case_is_left_out():
    rows = re.findall(
        r"^\| (\d+) \|.*\| (.+) \|$", (DOCS / "failure-cases.md").read_text(), re.MULTILINE
    )
    assert [int(number) for number, _ in rows] == list(range(1, 86))
    assert all("`test_" in shown or shown.startswith("none: ") for _, shown in rows)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_can_be_read(document):
    for text in blocks(document, "json"):
        json.loads(text)
    for text in blocks(document, "yaml"):
        assert all(yaml.safe_load_all(text))


def test_the_run_book_is_about_texts_that_the_programs_have():
    text = (DOCS / "troubleshooting.md").read_text()
    headings = re.findall(r'^### ([`"].+)$', text, re.MULTILINE)
    code = re.sub(r'"\s+f?"', "", "".join(path.read_text() for path in SOURCES))
    quoted = [name or quote for each in headings for name, quote in re.findall(QUOTED, each)]
    assert len(quoted) > len(headings) > 20
    assert [each for each in quoted if each not in code] == []


def test_every_line_in_the_table_of_log_lines_is_logged():
    text = (DOCS / "operations.md").read_text()
    table = set(
        re.findall(r"^\| `([\w ,]+)` \| (?:debug|info|warning|error) \|", text, re.MULTILINE)
    )
    code = "".join(path.read_text() for path in ROOT.glob("extender/**/*.py"))
    assert table
    assert [each for each in table if f'"{each}"' not in code] == []


def test_every_reason_why_a_pod_does_not_fit_is_explained():
    text = (DOCS / "troubleshooting.md").read_text()
    assert reasons.TEXTS
    assert [each for each in reasons.TEXTS if f"| `{each}` |" not in text] == []


def test_ports_and_files_are_those_of_the_programs():
    text = (DOCS / "operations.md").read_text()
    chosen = settings.read([], {"NODE_NAME": "n1"})
    for value in (
        EXTENDER_PORT,
        chosen.http_port,
        chosen.kubelet_port,
        chosen.state_dir,
        chosen.cdi_dir,
        chosen.kubelet_certificate,
    ):
        assert str(value) in text


def test_kubeadm_gives_kube_scheduler_the_file_that_it_is_told_to_read():
    shipped = (ROOT / "daemonset/scheduler/kubeadm.yaml").read_text()
    assert shipped in blocks("install.md", "yaml")
    scheduler = snippet("ClusterConfiguration")["scheduler"]
    (argument,), (volume,) = scheduler["extraArgs"], scheduler["extraVolumes"]
    assert argument["name"] == "config"
    assert argument["value"] == volume["mountPath"] == volume["hostPath"]
    (manifest,) = [
        each["spec"]
        for each in map(yaml.safe_load, blocks("install.md", "yaml"))
        if "spec" in each and "kind" not in each
    ]
    (container,), (mounted,) = manifest["containers"], manifest["volumes"]
    assert f"--config={argument['value']}" in container["command"]
    assert container["volumeMounts"][0]["mountPath"] == argument["value"]
    assert container["volumeMounts"][0]["name"] == mounted["name"]
    assert mounted["hostPath"]["path"] == argument["value"]


def test_the_kustomization_in_the_instructions_renders_with_another_unit_for_both(render_own):
    (added,) = [each for each in blocks("install.md", "yaml") if "configMapGenerator:" in each]
    text = yaml.safe_dump(snippet("Kustomization")) + added
    shipped = (ROOT / "daemonset/base/configuration/extender.yaml").read_text()
    own = shipped.replace("memoryUnit: GiB", "memoryUnit: 256MiB")
    objects = render_own(text, {"extender.yaml": own})
    plugin = objects.container("deviceplugin")
    assert [each for each in plugin["args"] if "unit" in each] == ["--memory-unit=256MiB"]
    assert objects.one("ConfigMap")["data"] == {"extender.yaml": own}
    found = parse(own.encode())
    assert (found.memory_unit, found.leader_election is None) == ("256MiB", False)
    for name in ("deviceplugin", "extender"):
        assert objects.container(name)["image"] == "registry.example.com/gpushare:0.1.0"
    volumes = {each["name"]: each for each in objects.pod("extender")["volumes"]}
    named = volumes["configuration"]["configMap"]["name"]
    assert named == objects.one("ConfigMap")["metadata"]["name"]


def test_the_listeners_in_the_instructions_can_be_opened():
    (listeners,) = [each for each in blocks("security.md", "yaml") if each.startswith("listen:")]
    found = parse(listeners.encode()).listen
    assert found.deciding_tls is not None
    assert found.reading is not None
    (scheduler,) = [each for each in blocks("security.md", "yaml") if "extenders:" in each]
    (asked,) = yaml.safe_load(scheduler)["extenders"]
    assert found.deciding_tls.tls.allowed_names == (certificates.SCHEDULER,)
    assert asked["tlsConfig"]["serverName"] == certificates.REPLICA
    assert f"`{certificates.SCHEDULER}-tls`" in (DOCS / "security.md").read_text()
    assert f":{found.deciding_tls.port}{contract.EXTENDER_PREFIX}" in asked["urlPrefix"]


def section_in(kind: Any) -> Any:
    """The section that a field holds, if it holds one."""
    return next((each for each in getattr(kind, "types", [kind]) if hasattr(each, "fields")), None)


def keys_of(section: Any, default: Any = None, place: str = "") -> Iterator[tuple[str, str]]:
    """Every key of the configuration and what holds where it is not given."""
    for field in section.fields:
        at = f"{place}{field.encode_name}"
        value = field.default if default is None else getattr(default, field.name)
        items = section_in(getattr(field.type, "item_type", None))
        if (below := section_in(field.type)) is not None:
            yield from keys_of(below, value if value != msgspec.NODEFAULT else None, f"{at}.")
        elif items is not None:
            yield from keys_of(items, None, f"{at}[].")
        else:
            yield at, {msgspec.NODEFAULT: "required", None: "none"}.get(value, f"`{value}`")


def test_every_key_of_the_configuration_is_in_the_table_with_its_default():
    text = (DOCS / "install.md").read_text()
    section = text.split("## The configuration file")[1].split("\n## ")[0]
    table = re.findall(r"^\| `([\w.\[\]]+)` \| (\S+) \|", section, re.MULTILINE)
    assert table == list(keys_of(msgspec.inspect.type_info(Configuration)))


# Of Kubernetes and gRPC.
FOREIGN_TEXTS = {
    "Available: 0",
    "Insufficient aliyun.com/gpu-mem",
    "Insufficient cpu",
    "Insufficient memory",
    "received message larger than max",
}


def test_texts_that_people_look_up_are_texts_that_the_programs_say():
    text = (DOCS / "troubleshooting.md").read_text()
    tables = re.findall(r"^\| text \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [row.split(" | ")[0] for table in tables for row in table.splitlines()]
    looked_up = {each for cell in cells for each in re.findall(r"`([^`]+)`", cell)}
    sources = [*SOURCES, *ROOT.glob("gpushare/**/*.py")]
    code = re.sub(r'"\s+f?"', "", "".join(path.read_text() for path in sources))
    assert len(tables) >= 4
    assert {each for each in looked_up if each not in code} == FOREIGN_TEXTS
