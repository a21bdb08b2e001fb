"""Read a file of bounded size, as everything that a kubeconfig names."""

from pathlib import Path

from gpushare.errors import SettingsError


class NoFile(SettingsError):
    """The file does not exist."""


def read(path: Path, most: int) -> bytes:
    """Return a file's content. Blocks.

    Raises NoFile, or SettingsError if it cannot be read or has more than ``most`` bytes.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as err:
        is_missing = isinstance(err, FileNotFoundError | NotADirectoryError)
        why = err.strerror if isinstance(err, OSError) else err
        kind = NoFile if is_missing else SettingsError
        raise kind(f"{str(path)!r} cannot be read: {why}") from err
    if len(content) > most:
        raise SettingsError(f"{path} has more than {most} bytes: correct the path")
    return content
