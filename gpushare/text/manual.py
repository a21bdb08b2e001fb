"""Where the documentation is read; texts name its pages by URL, as no file of it is installed."""

from typing import Final

DOCUMENTATION: Final = "https://github.com/gpushare/gpushare/blob/main/docs"


def manual(page: str) -> str:
    """Return the URL of a page, such as ``installation-options.md#gates``."""
    return f"{DOCUMENTATION}/{page}"
