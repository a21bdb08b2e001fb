"""The examples of gpushare simulate; the first line of each file is its title."""

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import resources

from gpushare.errors import SettingsError


def titles() -> Iterator[tuple[str, str]]:
    """Yield names and titles of all examples."""
    for name in _names():
        first = content(name).decode().partition("\n")[0]
        yield name, first.removeprefix("# ")


def point(name: str) -> str:
    """Return what an example shows: the comment below its title, in one paragraph."""
    text = content(name).decode().partition("\n---\n")[0]
    return " ".join(line.removeprefix("#").strip() for line in text.splitlines()[1:]).strip()


def content(name: str) -> bytes:
    """Return the text of an example; SettingsError if it does not exist."""
    if name not in _names():
        near = get_close_matches(name, _names(), 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"unknown example {name[:63]!r}: {meant}the examples are {', '.join(_names())}"
        )
    return resources.files(__name__).joinpath(f"{name}.yaml").read_bytes()


def _names() -> list[str]:
    files = (each.name for each in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))
