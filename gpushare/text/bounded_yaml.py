"""Load YAML whose work and memory are bounded by the length of its text (pure).

A few lines of aliases stand for billions of values, and PyYAML reads 1:59:59:... as one number of
base 60, each digit slower than the one before.
"""

from typing import Any, Final

import yaml

MAX_CHARACTERS: Final = 1_000_000  # that aliases expand to
MAX_DIGITS: Final = 100
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})

Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]


def load(content: bytes | str, loader_type: Loader = yaml.SafeLoader) -> Any:
    """Return the value of the only document. Raises yaml.YAMLError or errors.UNCONSTRUCTABLE."""
    loader = loader_type(content)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        check(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def check(root: yaml.Node) -> None:
    """Raise yaml.MarkedYAMLError for what would be constructed or expanded without bound.

    That is an alias that contains itself, aliases that expand to more than MAX_CHARACTERS, and a
    number of more than MAX_DIGITS characters.
    """
    sizes: dict[int, int | None] = {}  # in characters, by node; None while it is being counted
    repeated = 0

    def size(node: yaml.Node) -> int:
        nonlocal repeated
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise _error(node, "an alias contains itself")
            repeated += known
            if repeated > MAX_CHARACTERS:
                raise _error(node, f"aliases expand to more than {MAX_CHARACTERS} characters")
            return known
        sizes[id(node)] = None
        found = 1
        if isinstance(node, yaml.SequenceNode):
            found += sum(map(size, node.value))
        elif isinstance(node, yaml.MappingNode):
            found += sum(size(key) + size(value) for key, value in node.value)
        else:
            found += len(node.value)
            if node.tag in _NUMBERS and found > MAX_DIGITS:
                text = f"a number of {len(node.value)} characters: write text in quotes"
                raise _error(node, text)
        sizes[id(node)] = found
        return found

    size(root)


def _error(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
