"""Pictures in the documents are what the program draws now."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusharectl.app import cli
from tests.markdown import documents

DRAWN = [
    (path, command, target)
    for path in documents()
    for command, target in re.findall(
        r"^<!-- picture: gpushare (.+) -->\n!\[[^\]]+\]\((.+\.svg)\)$",
        path.read_text(),
        re.MULTILINE,
    )
]


@pytest.mark.parametrize(
    ("path", "command", "target"), DRAWN, ids=lambda each: Path(str(each)).name
)
def test_the_picture_is_what_its_command_draws(path, command, target, tmp_path):
    """If it differs, run the command with `--svg docs/...` and check the change."""
    drawn = tmp_path / "drawn.svg"
    done = CliRunner().invoke(cli, [*command.split(), "--svg", str(drawn)])
    assert done.exit_code == 0, done.output
    assert (path.parent / target).read_text() == drawn.read_text()


def test_no_drawn_picture_is_left_over():
    folder = Path(__file__).parents[3] / "docs" / "pictures"
    used = {(path.parent / target).resolve() for path, _, target in DRAWN}
    assert {path.name for path in folder.glob("concepts-*.svg") if path not in used} == set()
