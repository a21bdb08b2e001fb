"""Which requests a browser sends for pages of other sites (pure)."""

from collections.abc import Mapping
from typing import Final

# What a browser says of its own site's pages and of an address that a user types.
_OWN_SITE: Final = frozenset({"none", "same-origin"})
SITE: Final = "Sec-Fetch-Site"
MODE: Final = "Sec-Fetch-Mode"
DESTINATION: Final = "Sec-Fetch-Dest"


def is_of_another_site(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether another site's page causes a request, except by a link that a user follows.

    A frame of that page navigates too, but its destination is not a document.
    """
    if headers.get(SITE, "none") in _OWN_SITE:
        return False
    return (method, headers.get(MODE), headers.get(DESTINATION)) != ("GET", "navigate", "document")
