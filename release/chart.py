"""The chart as a package, with the image's repository as its default."""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

import yaml

from localcluster.errors import BuildError
from localcluster.run import run

CHART: Final = Path(__file__).parents[1] / "daemonset/chart"
_REPOSITORY: Final = re.compile(r"^  repository: gpushare$", re.MULTILINE)


def write(folder: Path, *, version: str, repository: str) -> Path:
    """Package the chart whose pods use ``repository``; return the archive.

    Raises BuildError if the chart and the project do not have the same version, CommandError if
    helm fails.
    """
    described = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    if not described["version"] == described["appVersion"] == version:
        text = f"daemonset/chart/Chart.yaml and pyproject.toml ({version}) differ in the version"
        raise BuildError(text)
    with tempfile.TemporaryDirectory() as scratch:
        # copytree follows the links to the manifests: helm warns about links out of the chart.
        copied = shutil.copytree(CHART, Path(scratch) / "gpushare")
        values = copied / "values.yaml"
        text, number = _REPOSITORY.subn(
            f"  repository: {repository}", values.read_text(encoding="utf-8")
        )
        if number != 1:
            raise BuildError("values.yaml has no single line `  repository: gpushare`")
        values.write_text(text, encoding="utf-8")
        run(["helm", "package", copied, "--destination", folder])
    return folder / f"gpushare-{version}.tgz"
