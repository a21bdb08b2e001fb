"""Parse YAML into events, to check its depth before it is composed (pure).

libyaml's composer is recursive and has no limit: ten thousand brackets crash the process without an
error. Its parser is not recursive.
"""

from collections.abc import Iterator
from typing import Final

import yaml

MAX_DEPTH: Final = 60
# libyaml's parser is ten times as fast, and every wheel of PyYAML includes it.
FastestLoader: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def with_depth(content: bytes) -> Iterator[tuple[int, yaml.Event]]:
    """Yield each event with its depth in lists and objects, including one that it begins.

    Stop at the first event deeper than MAX_DEPTH: the parser gets slower with each level. Raises
    yaml.YAMLError for invalid YAML.
    """
    depth = 0
    for event in yaml.parse(content, FastestLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        yield depth, event
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
