"""NVIDIA's toolkit in each setup of a node."""

import tomllib
from pathlib import Path

import pytest

from localcluster.driver import device_numbers
from localcluster.nvml import CardSpec, read_minors, write_state
from localcluster.printed import read_log
from localcluster.toolkit import Setup, config, has_handlers, spec_command, toolkit_of

LOG = """\
2026-11-22T12:00:00.1Z stdout F A=1=2
2026-11-22T12:00:00.1Z stdout F /dev/nvidia12 195:12 allowed
2026-11-22T12:00:00.1Z stdout F /dev/nvidia-uvm 510:0 allowed
2026-11-22T12:00:00.1Z stdout F /dev/nvidiactl 195:255 denied
"""


@pytest.mark.parametrize("setup", [each for each in Setup if each != Setup.NONE])
def test_the_toolkit_reads_its_configuration(setup: Setup) -> None:
    toolkit = toolkit_of(setup)
    assert toolkit is not None
    text = config(toolkit, folder=Path("/t"), runc=Path("/b/runc"), cli=Path("/c"))
    document = tomllib.loads(text)
    assert document["nvidia-container-cli"] == {
        "root": "/run/nvidia/driver",
        "path": "/c",
        "load-kmods": False,
    }
    assert document["nvidia-container-runtime"]["mode"] == toolkit.mode
    assert document["nvidia-container-runtime"]["runtimes"] == ["/b/runc"]


def test_an_operators_node_has_its_own_kind_runc_by_default_and_three_runtimes() -> None:
    toolkit = toolkit_of(Setup.OPERATOR)
    assert toolkit is not None
    text = config(toolkit, folder=Path("/t"), runc=Path("/r"), cli=Path("/c"))
    modes = tomllib.loads(text)["nvidia-container-runtime"]["modes"]
    assert modes["cdi"] == {"default-kind": "management.nvidia.com/gpu"}
    assert set(toolkit.handlers) == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert toolkit.default == "runc"
    assert "--mode=management" in spec_command(toolkit, Path("/t"))


def test_nodes_with_a_cdi_file_alone_and_without_toolkit_have_no_runtime_of_nvidias() -> None:
    without = {setup for setup in Setup if not has_handlers(setup)}
    assert without == {Setup.CDI, Setup.NONE}


def test_a_card_has_the_device_node_of_its_minor_number() -> None:
    names = device_numbers([CardSpec("GPU-a"), CardSpec("GPU-b", minor=5)])
    cards = {"nvidia0": (195, 0), "nvidia5": (195, 5)}
    control = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}
    assert names == cards | control


def test_the_minor_numbers_are_those_that_the_driver_tells(tmp_path: Path) -> None:
    write_state(tmp_path / "state", [CardSpec("GPU-a"), CardSpec("GPU-b", minor=5)])
    assert read_minors(tmp_path / "state") == {"GPU-a": 0, "GPU-b": 5}


def test_what_a_container_printed_is_read_once_it_is_whole() -> None:
    assert read_log(LOG) is None
    printed = read_log(LOG + "2026-11-22T12:00:00.1Z stdout F ready\n")
    assert printed is not None
    assert printed.environment == {"A": "1=2"}
    assert printed.minors == {12}
    assert len(printed.devices) == 3
