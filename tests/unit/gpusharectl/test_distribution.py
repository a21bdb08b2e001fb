"""``pip install gpushare`` brings the command line, and neither half."""

import configparser
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
MOST_BYTES = 60_000_000
PACKAGES = {"gpushare", "gpusharectl"}
# The packages of this environment are there, and the checkout is not.
HOOK = f"import sys; sys.path[:] = [each for each in sys.path if each != {str(ROOT)!r}]\n"
EVERY_HELP = """\
import importlib.util, sys
from gpusharectl.app import COMMANDS, cli

assert not any(map(importlib.util.find_spec, ("extender", "deviceplugin", "protos")))
for words in ([], *([name] for name in COMMANDS)):
    cli.main([*words, "--help"], prog_name="gpushare", standalone_mode=False)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel and the source distribution are."""
    folder = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def installed(built: Path, tmp_path: Path) -> Path:
    """A folder that the wheel is unpacked to, without anything else of gpushare."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)  # noqa: S202 - built above
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    return tmp_path


def python(installed: Path, code: str, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    argv = [sys.executable, "-c", code, *words]
    done = subprocess.run(argv, cwd=installed, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_wheel_has_the_command_line_and_no_other_module(installed: Path) -> None:
    (info,) = installed.glob("*.dist-info")
    found = {each.name for each in installed.iterdir()} - {info.name, "sitecustomize.py"}
    assert found == PACKAGES
    scripts = configparser.ConfigParser()
    scripts.optionxform = str  # type: ignore[assignment,method-assign]
    scripts.read(info / "entry_points.txt")
    commands = {"gpushare", "kubectl-gpushare", "kubectl_complete-gpushare"}
    assert set(scripts["console_scripts"]) == commands


def test_the_source_distribution_has_the_same_packages(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        folders = {Path(each).parts[1] for each in archive.getnames() if len(Path(each).parts) > 2}
    assert folders == PACKAGES


def needed(found: metadata.Distribution) -> dict[str, metadata.Distribution]:
    """Return what a distribution requires, directly and indirectly, as installed here."""
    needs, todo = {}, [found]
    while todo:
        for requirement in map(Requirement, todo.pop().requires or ()):
            is_meant = requirement.marker is None or requirement.marker.evaluate()
            if is_meant and requirement.name not in needs:
                needs[requirement.name] = metadata.distribution(requirement.name)
                todo.append(needs[requirement.name])
    return needs


def test_the_installed_command_line_has_at_most_60_megabytes(built: Path) -> None:
    """As after `pip install .` in an empty environment, without pip itself.

    A module counts twice, because what Python compiles it to has about the same size.
    """
    (wheel,) = built.glob("*.whl")
    (own,) = metadata.distributions(path=[str(wheel)])
    needs = needed(own)
    assert {"aiohttp", "click", "yarl"} <= set(needs)
    with zipfile.ZipFile(wheel) as archive:
        total = 2 * sum(each.file_size for each in archive.infolist())
    for each in needs.values():
        for file in each.files or ():
            if file.suffix != ".pyc":
                total += Path(str(file.locate())).stat().st_size * (1 + (file.suffix == ".py"))
    assert 10_000_000 < total < MOST_BYTES


def test_every_command_of_the_wheel_explains_itself(installed: Path) -> None:
    assert python(installed, EVERY_HELP).count("Usage: gpushare") > 1


def test_the_simulation_runs_from_the_wheel(installed: Path) -> None:
    code = "from gpusharectl.__main__ import main; main()"
    assert "64 GiB used" in python(installed, code, "simulate", "--example", "fragmentation")
