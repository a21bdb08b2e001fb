"""Tools that are built on request."""

import pytest

from localcluster.errors import UsageError
from localcluster.tools import tool, tools
from localcluster.versions import DEFAULT


def test_a_tool_that_is_there_is_not_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localcluster.programs._build", lambda _, folder, __: folder.mkdir())
        built = tool("helm", print)
    assert tool("helm", pytest.fail) == built


def test_an_unknown_tool_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no such tool: 'hlem'; there are: helm, kubeadm, kwok"):
        tool("hlem", print)


def test_kubeadm_says_the_version_of_the_clusters_kubernetes():
    flags = tools()["kubeadm"].link_flags
    assert any(each.endswith(f"Version={DEFAULT.release}") for each in flags)
