"""What a cluster is built from, and when it is built again."""

import shutil
from pathlib import Path

import pytest

from localcluster import build as building
from localcluster.build import build, modules
from localcluster.errors import BuildError, UsageError
from localcluster.gobuild import module_version, program_name
from localcluster.versions import DEFAULT, Version, version, versions


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def built(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the packages that are built from now on, without a compiler."""
    found: list[str] = []

    def compile_nothing(_: Path, packages: list[str], output: Path, **__: object) -> None:
        found.extend(packages)
        for each in packages:
            (output / program_name(each)).write_text(each)

    monkeypatch.setattr(building, "go_build", compile_nothing)
    monkeypatch.setattr(building, "provide", lambda _: None)
    return found


@pytest.mark.parametrize("each", versions(), ids=str)
def test_every_component_is_required_by_the_go_mod_it_is_built_from(each: Version) -> None:
    for module in modules(each):
        listed = (module.source / "go.mod").read_text()
        for component in module.components:
            package = component.package
            assert (
                package.startswith("./")
                or f"\t{package}\n" in listed
                or f"tool {package}\n" in listed
            )


@pytest.mark.parametrize("each", versions(), ids=str)
def test_the_components_of_a_version_say_their_release(each: Version) -> None:
    kubernetes = modules(each)[-1]
    assert each.release.startswith(f"v{each}.")
    for component in kubernetes.components:
        assert any(flag.endswith(f"gitVersion={each.release}") for flag in component.link_flags)


def test_a_cluster_has_the_version_of_its_name_and_the_default_is_one_of_them() -> None:
    assert DEFAULT in versions()
    assert version("1.34") == DEFAULT
    with pytest.raises(UsageError, match=r"no cluster can have Kubernetes '1\.5'; there are: 1\."):
        version("1.5")


def test_a_second_version_builds_only_kubernetes_again(built: list[str]) -> None:
    first = build(lambda _: None, versions()[0])
    del built[:]
    second = build(lambda _: None, versions()[-1])
    assert built
    assert all(each.startswith("k8s.io/kubernetes/") for each in built)
    names = {each.name for each in first.iterdir()}
    assert names == {each.name for each in second.iterdir()}
    assert {"etcd", "runc", "containerd", "kubelet", "kube-scheduler"} <= names


def test_what_is_there_is_not_built_again(built: list[str]) -> None:
    folder = build(lambda _: None)
    del built[:]
    assert build(pytest.fail) == folder
    assert not built


def test_a_build_that_was_cut_off_is_continued(built: list[str], cache: Path) -> None:
    folder = build(lambda _: None)
    shutil.rmtree(folder.parent)
    *_, kubernetes = modules(DEFAULT)
    (kubernetes.folder / "kubelet").unlink()
    del built[:]
    assert build(lambda _: None) == folder
    assert built == ["k8s.io/kubernetes/cmd/kubelet"]
    assert (folder / "kubelet").exists()


def test_only_the_go_mod_of_a_version_decides_whether_it_is_built_again(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "kubernetes"
    shutil.copytree(DEFAULT.module.parent, sources)
    monkeypatch.setattr("localcluster.versions._SOURCES", sources)
    build(lambda _: None)
    del built[:]
    other = versions()[-1].module / "go.mod"
    other.write_text(other.read_text() + "\n")
    build(pytest.fail)
    own = DEFAULT.module / "go.mod"
    own.write_text(own.read_text() + "\n")
    build(lambda _: None)
    assert {each.rpartition("/")[2] for each in built} == {
        "kubectl",
        "kube-scheduler",
        "kube-apiserver",
        "kubelet",
        "kube-controller-manager",
    }


def test_a_module_that_go_mod_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module m\n")
    with pytest.raises(BuildError, match=r"does not require example\.org/x"):
        module_version(tmp_path, "example.org/x")


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("go.etcd.io/etcd/server/v3", "server"),
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        ("./pause", "pause"),
    ],
)
def test_a_program_has_the_name_that_go_gives_it(package: str, name: str) -> None:
    assert program_name(package) == name


def test_programs_that_are_built_alike_are_built_at_once(built: list[str]) -> None:
    said: list[str] = []
    build(said.append)
    (line,) = (each for each in said if each.startswith("building kubernetes-"))
    assert "kubelet" in line
    assert "kube-apiserver" in line
    assert len(built) > len(said)
