"""``--clean`` deletes the plugin's files and no others."""

from pathlib import Path

import pytest

from deviceplugin import settings
from deviceplugin.lifecycle.clean import clean
from gpushare.errors import SettingsError


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's folders, with files of ours and of others."""
    for name in (
        "sockets/gpushare.sock",
        "sockets/gpushare.sock.17.1",
        "sockets/kubelet.sock",
        "sockets/kubelet_internal_checkpoint",
        "cdi/gpushare-0123.json",
        "cdi/gpushare-probe.new",
        "cdi/nvidia.yaml",
        "var/gpushare/state.json",
        "var/gpushare/lock",
        "var/gpushare/handover.sock",
        "var/gpushare/handover.sock.0a1b2c3d",
        "var/others/file",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def wanted(node: Path) -> settings.Settings:
    folders = {"device-plugin": "sockets", "cdi": "cdi", "state": "var/gpushare"}
    words = [f"--{key}-dir={node / folder}" for key, folder in folders.items()]
    return settings.read(["--clean", *words], {"NODE_NAME": "n1"})


def left(node: Path) -> set[str]:
    return {str(path.relative_to(node)) for path in node.rglob("*") if path.is_file()}


async def test_only_the_plugins_files_are_deleted(node: Path) -> None:
    await clean(wanted(node))
    assert left(node) == {
        "sockets/kubelet.sock",
        "sockets/kubelet_internal_checkpoint",
        "cdi/nvidia.yaml",
        "var/others/file",
    }
    assert not (node / "var/gpushare").exists()


async def test_a_node_that_is_clean_is_clean_again(node: Path) -> None:
    await clean(wanted(node))
    there = left(node)
    await clean(wanted(node))
    assert left(node) == there


async def test_a_file_that_cannot_be_deleted_is_named(node: Path) -> None:
    (node / "cdi/gpushare-folder").mkdir()
    with pytest.raises(SettingsError, match="gpushare-folder"):
        await clean(wanted(node))


async def test_files_of_other_programs_stay(node: Path) -> None:
    (node / "var/gpushare/state.json.new").touch()
    (node / "var/gpushare/theirs").touch()
    await clean(wanted(node))
    assert [path.name for path in (node / "var/gpushare").iterdir()] == ["theirs"]
