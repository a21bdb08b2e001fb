"""The extender's configuration file with its defaults, and the device plugin's flags."""

import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect

from deviceplugin.settings import command
from extender.settings.configuration import Configuration
from reference.command_line import options_of
from reference.markdown import WIDTH, table

_UNSET: Final = (msgspec.NODEFAULT, msgspec.UNSET)


def extender() -> str:
    """Return a file with every key: its default, or an example where there is none."""
    lines = _section(inspect.type_info(Configuration), {}, "")
    return "\n".join(["```yaml", *lines, "```"])


def plugin() -> str:
    flags = options_of(command(), "gpushare-deviceplugin")
    rows = [
        (f"`{left.removesuffix(' VALUE')}`", default.rstrip("]"), meaning)
        for left, right in flags
        for meaning, _, default in (right.partition(" [default: "),)
    ]
    return table(("flag", "default", "meaning"), *rows)


def _section(kind: inspect.Type, given: dict[str, Any], indent: str) -> Iterator[str]:
    """Yield the keys of a section; those in ``given`` have these values."""
    assert isinstance(kind, inspect.StructType)  # noqa: S101 - a mistake in the code
    for field in kind.fields:
        plain, said, example = _described(field.type)
        name = field.encode_name
        value = given.get(name, msgspec.to_builtins(field.default) if _has_default(field) else None)
        below = _structure(plain)
        comment = _comment(plain, said)
        value = example if value is None else value
        if below is not None and _is_section(below):
            yield from _line(f"{indent}{name}:", comment, indent)
            yield from _section(below, value or {}, indent + "  ")
        else:
            yield from _value(f"{indent}{name}:", value, comment, indent)


def _has_default(field: inspect.Field) -> bool:
    return field.default not in _UNSET


def _described(kind: inspect.Type) -> tuple[inspect.Type, str, Any]:
    """Return a field's type, its description and its example."""
    if not isinstance(kind, inspect.Metadata):
        return kind, "", None
    more = kind.extra_json_schema or {}
    return kind.type, more.get("description", ""), next(iter(more.get("examples", ())), None)


def _structure(kind: inspect.Type) -> inspect.StructType | None:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((each for each in kinds if isinstance(each, inspect.StructType)), None)


def _is_section(kind: inspect.StructType) -> bool:
    """Return whether to show each key by itself: one of them is described or has a default."""
    return any(isinstance(e.type, inspect.Metadata) or _has_default(e) for e in kind.fields)


def _comment(kind: inspect.Type, said: str) -> str:
    """Return the description, with the values that it does not name."""
    if isinstance(kind, inspect.LiteralType):
        values = list(map(str, kind.values))
        if not all(each in said for each in values):
            return ": ".join(filter(None, (said, ", ".join(values))))
    return said


def _value(key: str, value: Any, comment: str, indent: str) -> Iterator[str]:
    """Yield a key and its value, in one line if it is short enough."""
    text = f"{key} {_flow(value)}"
    if len(text) <= WIDTH or not isinstance(value, dict):
        yield from _line(text, comment, indent)
        return
    yield from _line(key, comment, indent)
    for name, each in value.items():
        yield f"{indent}  {name}: {_flow(each)}"


def _line(text: str, comment: str, indent: str) -> Iterator[str]:
    """Yield a line with a comment behind it, or above if it is long."""
    if comment and len(text) + len(comment) + 4 <= WIDTH:
        yield f"{text}  # {comment}"
        return
    start = f"{indent}# "
    yield from textwrap.wrap(comment, WIDTH, initial_indent=start, subsequent_indent=start)
    yield text


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")
