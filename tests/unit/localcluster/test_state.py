"""Names and paths of a cluster."""

from pathlib import Path

import pytest

from localcluster.errors import UsageError
from localcluster.specs import NodeSpec, PaperNode, check_nodes
from localcluster.state import StateFolder, check_name


@pytest.mark.parametrize("name", ["n1", "a", "a-b", "x" * 32])
def test_a_plain_name_is_taken(name: str) -> None:
    assert check_name("node", name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "../a", "a b", "x" * 33, "é", "a\n"])
def test_a_strange_name_is_refused_with_what_was_wanted(name: str) -> None:
    with pytest.raises(UsageError, match="wanted at most 32 lower-case"):
        check_name("node", name)


def test_names_on_the_machine_follow_from_the_folder_alone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("s")  # a socket's path must be short
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    one, again, other = (StateFolder.of(name) for name in ("one", "one", "other"))
    assert one.link_prefix == again.link_prefix != other.link_prefix
    assert one.cgroup == again.cgroup != other.cgroup
    assert len(f"{one.link_prefix}v16") <= 15  # the kernel's limit
    assert one.path == folder.resolve() / "gpushare" / "localcluster" / "one"


def test_a_too_long_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("x" * 100)))
    with pytest.raises(UsageError, match="set XDG_STATE_HOME to a shorter folder"):
        StateFolder.of("one")


def test_a_node_name_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice: a"):
        check_nodes((NodeSpec("a"), NodeSpec("b")), (PaperNode("a"),))


def test_a_second_control_plane_node_is_refused() -> None:
    both = (NodeSpec("a", control_plane=True), NodeSpec("b", control_plane=True))
    with pytest.raises(UsageError, match=r"2 control-plane nodes asked \(a, b\)"):
        check_nodes(both, ())
