"""A YAML text piece by piece, to be looked at before it is composed (pure).

libyaml's composer calls itself for each level and has no limit: some ten thousand brackets end the
process, and no error tells why. Its parser needs no stack.
"""

from collections.abc import Iterator
from typing import Final

import yaml

MAX_DEPTH: Final = 60
# libyaml's parser is ten times faster, and is in every wheel of PyYAML.
FastestLoader: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def with_depth(content: bytes) -> Iterator[tuple[int, yaml.Event]]:
    """Each event, and in how many lists and objects it is, the one that it begins counted.

    To be left at the first that is deeper than MAX_DEPTH: the parser gets slower with each level.
    Raises yaml.YAMLError for what is no YAML.
    """
    depth = 0
    for event in yaml.parse(content, FastestLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        yield depth, event
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
