"""Read YAML files into documents with the line of each part (pure)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import yaml

from gpushare.errors import UNCONSTRUCTABLE, UNDECODABLE, SettingsError
from gpushare.text import bounded_yaml
from gpushare.text.yaml_events import MAX_DEPTH, FastestLoader, with_depth
from gpusharectl.manifests.kubernetes_keys import Path

MAX_FOR_LINE: Final = 2**20  # bytes of JSON that are read again as YAML to find a line
LISTS: Final = frozenset({"List", "NamespaceList", "NodeList", "PodList", "PriorityClassList"})
_PLAIN: Final = 500  # so few brackets cannot be too deep for the stack
_INDENTED: Final = re.compile(rb" {400}|(?:[-?:][ \t]+){50}")
_MERGE: Final = "tag:yaml.org,2002:merge"
_FLOAT: Final = "tag:yaml.org,2002:float"
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


# Numbers such as 0.5 stay as written, as in YAML below.
_decode_json: Final = msgspec.json.Decoder(float_hook=str).decode


class _Loader(FastestLoader):  # type: ignore[misc, valid-type] # one of two classes
    """Reads YAML like Kubernetes: times are text, and a number such as 0.5 stays as written."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to set it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_constructor(_FLOAT, yaml.SafeLoader.construct_yaml_str)


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file; ``base`` is its place in the document ``root``, or in its text."""

    file: str
    value: dict[str, Any]
    root: yaml.Node | bytes
    base: Path = ()

    def wrong(self, place: Path, text: str) -> SettingsError:
        """Return the error to raise for a place: file, line, place, and what to do.

        Without a line, as in large JSON, the object's place and name are told instead.
        """
        root = _root_of_json(self.root) if isinstance(self.root, bytes) else self.root
        shown = shown_place(place)
        where = f"{self.file}:{_line(root, (*self.base, *place))}" if root else self._named()
        return SettingsError(f"{where}: {shown + ': ' if shown else ''}{text}")

    def _named(self) -> str:
        metadata = self.value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else ""
        named = " ".join(str(each)[:63] for each in (self.value.get("kind"), name) if each)
        listed = shown_place(self.base)
        return f"{self.file}: {f'{listed} ({named})' if listed else named}"


def read(file: str, content: bytes) -> Iterator[Document]:
    """Yield the documents of a file that are not empty.

    Raises SettingsError with file and line for invalid YAML, duplicate keys, and documents that
    are not objects.
    """
    sent = _sent_as_json(file, content)
    if sent is not None:
        yield Document(file, sent, content)
        return
    try:
        if _may_be_deep(content):
            _check_depth(file, content)
        loader = _Loader(content)
        while loader.check_node():
            root = loader.get_node()
            line = root.start_mark.line + 1
            odd: list[SettingsError] = []
            _check(file, root, set(), 0, odd)
            bounded_yaml.check(root)
            value = loader.construct_document(root)
            if value is None:
                continue
            if odd and not (isinstance(value, dict) and _is_served(value)):
                raise odd[0]
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


def objects(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield each object, also those of a list such as ``kubectl get -o yaml`` prints.

    Raises SettingsError for an object without a kind.
    """
    for doc in documents:
        kind = _object(doc).value["kind"]
        if kind not in LISTS:
            yield doc
            continue
        items = doc.value.get("items") or []
        if not isinstance(items, list):
            raise doc.wrong(("items",), "expected a list of objects")
        for number, item in enumerate(items):
            if not isinstance(item, dict):
                raise doc.wrong(("items", number), "expected a Kubernetes object")
            # The items of a PodList have no kind.
            value = {"kind": kind.removesuffix("List"), **item}
            yield _object(replace(doc, value=value, base=(*doc.base, "items", number)))


def _object(doc: Document) -> Document:
    """Return a document of an object. Raises SettingsError for one without a kind."""
    kind, metadata = doc.value.get("kind"), doc.value.get("metadata")
    if not isinstance(kind, str):
        text = f"expected a Kubernetes object with a kind, found kind {kind!r:.40}"
        raise doc.wrong((), text)
    if not isinstance(metadata, dict | None):
        raise doc.wrong(("metadata",), f"expected a mapping, found {metadata!r:.40}")
    return doc


def _root_of_json(content: bytes) -> yaml.Node | None:
    """Return the YAML of JSON; None if YAML rejects it, or if it would take long."""
    if len(content) > MAX_FOR_LINE:
        return None
    try:
        root: yaml.Node = _Loader(content).get_single_node()
    except (yaml.YAMLError, *UNCONSTRUCTABLE):
        return None
    return root


def _sent_as_json(file: str, content: bytes) -> dict[str, Any] | None:
    """Return what an API server sent as JSON; None if it is anything else.

    It has no slips of the pen to look for, and of a large cluster has 100 MB: this needs a tenth of
    the time and memory of YAML. Raises SettingsError if the JSON has no end.
    """
    if not content[:100].lstrip().startswith(b"{"):
        return None
    try:
        found = _decode_json(content)
    except UNDECODABLE as err:
        if "truncated" in str(err):
            size = f"{len(content):,} bytes"
            text = f"the JSON ends too early, after {size}: was its transfer interrupted?"
            raise SettingsError(f"{file}: {text}") from err
        return None  # told as invalid YAML, with its line
    return found if isinstance(found, dict) and _is_served(found) else None


def _is_served(value: dict[str, Any]) -> bool:
    """Return whether an API server sent all objects; drop what nobody reads from them."""
    items = value.get("items")
    objects = items if isinstance(items, list) and items else [value]
    for each in objects:
        metadata = each.get("metadata") if isinstance(each, dict) else None
        if not isinstance(metadata, dict) or not metadata.get("uid"):
            return False
        metadata.pop("managedFields", None)  # half of a list
    return True


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


def _check(
    file: str, node: yaml.Node, seen: set[int], depth: int, odd: list[SettingsError]
) -> None:
    """Reject what YAML accepts silently, and add characters that a terminal would obey to ``odd``.

    A status from an API server may have such characters: what a container wrote at its end.
    """
    if id(node) in seen:
        return  # an alias
    seen.add(id(node))
    line = node.start_mark.line + 1
    if depth > MAX_DEPTH:
        raise SettingsError(f"{file}:{line}: is nested too deeply")
    if isinstance(node, yaml.ScalarNode):
        text = node.value
        if not text.isprintable() and any(not c.isprintable() and c not in "\n\t" for c in text):
            what = f"{text!r:.60} has characters that cannot be shown"
            odd.append(SettingsError(f"{file}:{line}: {what}"))
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check(file, each, seen, depth + 1, odd)
    elif isinstance(node, yaml.MappingNode):
        _check_keys(file, node)
        for key, value in node.value:
            _check(file, key, seen, depth + 1, odd)
            _check(file, value, seen, depth + 1, odd)


def _check_keys(file: str, node: yaml.MappingNode) -> None:
    there: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            what = "a key that is not a scalar (a Helm template? Run helm template first)"
            raise SettingsError(f"{file}:{line}: {what}")
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
