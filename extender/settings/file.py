"""Reads the configuration file, and reports every problem with its line and place."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect

from extender.settings.configuration import Configuration
from extender.settings.section import Problem, Unusable
from gpushare.errors import UNCONSTRUCTABLE, SettingsError
from gpushare.text import bounded_yaml

MAX_BYTES: Final = 2**20
MAX_SHOWN: Final = 20
MAX_DEPTH: Final = 20
MAX_PLACES: Final = 10_000  # a few lines with aliases can stand for billions
_MERGE: Final = "tag:yaml.org,2002:merge"
_WANTED: Final[dict[type[inspect.Type], tuple[tuple[type, ...], str]]] = {
    inspect.BoolType: ((bool,), "true or false"),
    inspect.IntType: ((int,), "a whole number"),  # not bool
    inspect.FloatType: ((int, float), "a number"),
    inspect.StrType: ((str,), "text, in quotes if necessary"),
    inspect.VarTupleType: ((list,), "a list"),
}


def load(path: Path) -> Configuration:
    """Return the configuration; raise SettingsError with a line for each problem."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as err:
        raise SettingsError(f"{path} cannot be read: {err.strerror or err}") from err
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{path} has more than {MAX_BYTES} bytes: it is not a configuration")
    try:
        return parse(content)
    except SettingsError as err:
        raise SettingsError(f"{path} cannot be used:{err}") from err


def parse(content: bytes) -> Configuration:
    """Return the configuration from a file's text; raise SettingsError with all problems."""
    try:
        root = yaml.compose(content, yaml.SafeLoader)
        lines: dict[str, int] = {}
        found = [] if root is None else list(_repeated(root, "", lines, 0))
        if found:
            raise _unusable(found, lines)
        value = bounded_yaml.load(content)
    except (yaml.YAMLError, *UNCONSTRUCTABLE) as err:
        raise SettingsError(f"\n  not YAML: {_one_line(err)}") from err
    value = {} if value is None else value
    found = list(_problems(value, inspect.type_info(Configuration), ""))
    if found:
        raise _unusable(found, lines)
    return msgspec.convert(value, Configuration)


def _unusable(found: Sequence[Problem], lines: dict[str, int]) -> SettingsError:
    shown = "".join(
        f"\n  {place or 'the file'}{_line(place, lines)}: {text}"
        for place, text in found[:MAX_SHOWN]
    )
    more = len(found) - MAX_SHOWN
    return SettingsError(shown + (f"\n  and {more} more" if more > 0 else ""))


def _line(place: str, lines: dict[str, int]) -> str:
    """Return the line of a place, or of the section that it is missing from."""
    while place:
        if place in lines:
            return f" (line {lines[place]})"
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return ""


def _repeated(node: yaml.Node, place: str, lines: dict[str, int], depth: int) -> Iterator[Problem]:
    """Record the line of every place, and report what YAML itself accepts silently."""
    if depth > MAX_DEPTH:
        yield place, "is nested too deeply"
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{place}.{key.value}" if place else str(key.value)
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                yield place, "has a key that is not plain text"
                continue
            line = key.start_mark.line + 1
            if below in lines:
                yield below, f"is a duplicate key, again on line {line}"
                continue
            _record(lines, below, line)
            yield from _repeated(value, below, lines, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            below = f"{place}[{number}]"
            _record(lines, below, value.start_mark.line + 1)
            yield from _repeated(value, below, lines, depth + 1)


def _record(lines: dict[str, int], place: str, line: int) -> None:
    lines[place] = line
    if len(lines) > MAX_PLACES:
        raise SettingsError(f"\n  {place} (line {line}): more than {MAX_PLACES} values")


def _problems(value: Any, kind: inspect.Type, place: str) -> Iterator[Problem]:
    match kind:
        case inspect.Metadata(type=described):
            yield from _problems(value, described, place)
        case inspect.StructType():
            yield from _of_section(value, kind, place)
        case inspect.UnionType(types=types):
            (other,) = (each for each in types if not isinstance(each, inspect.NoneType))
            yield from _problems(value, other, place) if value is not None else ()
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _problems(each, item, f"{place}[{number}]")
        case _:
            if wrong := _wrong(value, kind):
                yield place, wrong


def _wrong(value: Any, kind: inspect.Type) -> str:
    """Return what to write instead of a scalar; empty if it is right."""
    match kind:
        case inspect.LiteralType(values=values):
            if value not in values:
                return f"{_shown(value)}: write one of {', '.join(map(str, values))}"
        case inspect.IntType(ge=int(least), le=int(most)) if type(value) is int:
            if not least <= value <= most:
                return f"{value}: write a number from {least} to {most}"
        case inspect.StrType(pattern=str()) if isinstance(value, str):
            return "" if value.strip() else "is empty"
        case _:
            kinds, wanted = _WANTED[type(kind)]
            if type(value) not in kinds:
                return f"{_shown(value)}: write {wanted}"
    return ""


def _of_section(value: Any, kind: inspect.StructType, place: str) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield place, f"write keys with values here, not {_shown(value)}"
        return
    fields = {field.encode_name: field for field in kind.fields}
    found: list[Problem] = []
    for key, each in value.items():
        if key in fields:
            found.extend(_problems(each, fields[key].type, _below(place, key)))
            continue
        near = difflib.get_close_matches(str(key), fields, 1, 0.6)
        meant = f"did you mean {near[0]}" if near else f"the keys are {', '.join(fields)}"
        found.append((_below(place, str(key)[:63]), f"unknown key: {meant}"))
    found += [
        (_below(place, name), "is missing")
        for name, field in fields.items()
        if field.required and name not in value
    ]
    if not found:
        try:
            msgspec.convert(value, kind.cls)
        except msgspec.ValidationError as err:
            if not isinstance(err.__cause__, Unusable):
                raise
            found = [(_below(place, at), text) for at, text in err.__cause__.problems]
    yield from found


def _below(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "keys with values"
    return repr(value)[:63]


def _one_line(err: Exception) -> str:
    return " ".join(str(err).split())[:300]
