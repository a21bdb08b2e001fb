"""Read YAML files into documents with the line of each part (pure)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpushare.errors import UNCONSTRUCTABLE, SettingsError
from gpushare.text.yaml_events import MAX_DEPTH, FastestLoader, with_depth
from gpusharectl.manifests.kubernetes_keys import Path

MAX_REPEATED: Final = 100_000  # values that aliases expand to: a few lines can make them billions
_PLAIN: Final = 500  # so few brackets cannot be too deep for the stack
_INDENTED: Final = re.compile(rb" {400}|(?:[-?:][ \t]+){50}")
_MERGE: Final = "tag:yaml.org,2002:merge"
_FLOAT: Final = "tag:yaml.org,2002:float"
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(FastestLoader):  # type: ignore[misc, valid-type] # one of two classes
    """Reads YAML like Kubernetes: times are text, and a number such as 0.5 stays as written."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to set it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_constructor(_FLOAT, yaml.SafeLoader.construct_yaml_str)


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file; ``base`` is its place in the YAML document ``root``."""

    file: str
    value: dict[str, Any]
    root: yaml.Node
    base: Path = ()

    def wrong(self, place: Path, text: str) -> SettingsError:
        """Return the error to raise for a place: file, line, place, and what to do."""
        line = _line(self.root, (*self.base, *place))
        shown = shown_place(place)
        return SettingsError(f"{self.file}:{line}: {shown + ': ' if shown else ''}{text}")


def read(file: str, content: bytes) -> Iterator[Document]:
    """Yield the documents of a file that are not empty.

    Raises SettingsError with file and line for invalid YAML, duplicate keys, and documents that
    are not objects.
    """
    try:
        if _may_be_deep(content):
            _check_depth(file, content)
        loader = _Loader(content)
        while loader.check_node():
            root = loader.get_node()
            line = root.start_mark.line + 1
            _check(file, root, set(), 0)
            _check_aliases(file, root)
            value = loader.construct_document(root)
            if value is None:
                continue
            if not isinstance(value, dict):
                raise SettingsError(
                    f"{file}:{line}: expected a Kubernetes object, found {value!r:.60}"
                )
            yield Document(file, value, root)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise SettingsError(f"{file}:{line}: invalid YAML: {err.problem or err.context}") from err
    except (yaml.YAMLError, *UNCONSTRUCTABLE) as err:
        text = " ".join(str(err).split())[:200]
        raise SettingsError(f"{file}:1: invalid YAML: {text or 'nested too deeply'}") from err


def shown_place(place: Path) -> str:
    """Format a place: ``spec.containers[0].name``."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in place]
    return "".join(parts).removeprefix(".")


def _may_be_deep(content: bytes) -> bool:
    """Return true if the depth must be checked first: libyaml's composer has no limit."""
    is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))  # UTF-16, in which nothing is counted
    brackets = content.count(b"[") + content.count(b"{")
    return is_wide or brackets > _PLAIN or bool(_INDENTED.search(content))


def _check_depth(file: str, content: bytes) -> None:
    for depth, event in with_depth(content):
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            raise SettingsError(f"{file}:{line}: is nested too deeply")


def _check(file: str, node: yaml.Node, seen: set[int], depth: int) -> None:
    """Reject what YAML accepts silently, and characters that a terminal would obey."""
    if id(node) in seen:
        return  # an alias
    seen.add(id(node))
    line = node.start_mark.line + 1
    if depth > MAX_DEPTH:
        raise SettingsError(f"{file}:{line}: is nested too deeply")
    if isinstance(node, yaml.ScalarNode):
        text = node.value
        if not text.isprintable() and any(not c.isprintable() and c not in "\n\t" for c in text):
            raise SettingsError(f"{file}:{line}: {text!r:.60} has characters that cannot be shown")
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check(file, each, seen, depth + 1)
    elif isinstance(node, yaml.MappingNode):
        _check_keys(file, node)
        for key, value in node.value:
            _check(file, key, seen, depth + 1)
            _check(file, value, seen, depth + 1)


def _check_aliases(file: str, root: yaml.Node) -> None:
    """Reject aliases that expand to too many values, or to themselves."""
    sizes: dict[int, int | None] = {}  # by node; None while it is being counted
    repeated = 0

    def size(node: yaml.Node) -> int:
        nonlocal repeated
        line = node.start_mark.line + 1
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise SettingsError(f"{file}:{line}: an alias contains itself")
            repeated += known
            if repeated > MAX_REPEATED:
                text = f"aliases expand to more than {MAX_REPEATED} values"
                raise SettingsError(f"{file}:{line}: {text}")
            return known
        sizes[id(node)] = None
        found = 1
        if isinstance(node, yaml.SequenceNode):
            found += sum(map(size, node.value))
        elif isinstance(node, yaml.MappingNode):
            found += sum(size(key) + size(value) for key, value in node.value)
        sizes[id(node)] = found
        return found

    size(root)


def _check_keys(file: str, node: yaml.MappingNode) -> None:
    there: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{file}:{line}: a key that is not a scalar")
        if key.tag == _MERGE:
            continue
        if key.value in there:
            first = there[key.value]
            text = f"{key.value[:60]!r} is a duplicate key, first on line {first}"
            raise SettingsError(f"{file}:{line}: {text}")
        there[key.value] = line


def _line(root: yaml.Node, place: Path) -> int:
    """Return the line of a place, or of its nearest parent."""
    node, line = root, int(root.start_mark.line) + 1
    for part in place:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            found = [each for each in node.value if each[0].value == part]
            if not found:
                break
            key, node = found[0]
            line = key.start_mark.line + 1
        else:
            break
    return line
