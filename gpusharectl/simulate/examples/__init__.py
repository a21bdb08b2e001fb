"""The examples of gpushare simulate; the first line of each file is its title."""

from collections.abc import Iterator
from importlib import resources

from gpushare.errors import SettingsError


def titles() -> Iterator[tuple[str, str]]:
    """Yield names and titles of all examples."""
    for name in _names():
        first = content(name).decode().partition("\n")[0]
        yield name, first.removeprefix("# ")


def content(name: str) -> bytes:
    """Return the text of an example; SettingsError if it does not exist."""
    if name not in _names():
        raise SettingsError(
            f"unknown example {name[:63]!r}: the examples are {', '.join(_names())}"
        )
    return resources.files(__name__).joinpath(f"{name}.yaml").read_bytes()


def _names() -> list[str]:
    files = (each.name for each in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))
