"""Read the values in a document, and check its keys: names, times, typed objects (pure)."""

import re
from typing import Any, Final, TypeVar

import msgspec

from gpushare.objects.model import Node, Pod
from gpusharectl.manifests.fields import Field
from gpusharectl.manifests.kubernetes_keys import Keys, Path, unknown
from gpusharectl.manifests.yaml_lines import Document

Times = tuple[int, int | None]  # at, delete

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_TIME: Final = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)
_FOUND_AT: Final = re.compile(r"(?P<text>.*?) - at `\$(?P<place>.*)`", re.DOTALL)
_PART: Final = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<number>\d+)\]|\[\.\.\.\]")


def present(value: dict[str, Any]) -> dict[str, Any]:
    """Remove nulls: in Kubernetes' YAML absent and null mean the same."""
    metadata = {k: v for k, v in (value["metadata"] or {}).items() if v is not None}
    return {
        "metadata": metadata,
        "spec": value["spec"] or {},
        "status": value["status"] or {},
    }


_T = TypeVar("_T", Node, Pod)


def convert(doc: Document, place: Path, value: dict[str, Any], kind: type[_T]) -> _T:
    """Return the typed object; SettingsError with the line of a wrong type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as err:
        match = _FOUND_AT.fullmatch(str(err))
        text, found = (match["text"], match["place"]) if match else (str(err), "")
        where: Path = tuple(
            int(part["number"]) if part["number"] else part["key"]
            for part in _PART.finditer(found)
            if part["number"] or part["key"]
        )
        hint = ": write it in quotes" if text.startswith("Expected `str`") else ""
        raise doc.wrong((*place, *where), text.replace("`", "") + hint) from err


def name_of(doc: Document) -> str:
    """Return the object's name, or how generated names begin.

    SettingsError if Kubernetes would reject it.
    """
    metadata = doc.value.get("metadata")
    if not isinstance(metadata, dict):
        raise doc.wrong(("metadata",), "expected a mapping with a name")
    name, generated = metadata.get("name"), metadata.get("generateName")
    if name is None and isinstance(generated, str):
        name = generated.rstrip("-.")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        text = f"expected a name of lower case letters, digits, '-' and '.', found {name!r:.80}"
        raise doc.wrong(("metadata", "name"), text)
    return name


def times_of(doc: Document) -> Times:
    """Return when a pod is created and deleted; SettingsError for an invalid time."""
    at, delete = time_of(doc, "at") or 0, time_of(doc, "delete")
    if delete is not None and delete <= at:
        raise doc.wrong(("delete",), f"{delete}s is not after at: {at}s")
    return at, delete


def time_of(doc: Document, key: str) -> int | None:
    """Return seconds; None if the key is missing."""
    value = doc.value.get(key)
    if value is None:
        return None
    if type(value) is int and 0 <= value < 10**9:
        return value
    match = _TIME.fullmatch(value) if isinstance(value, str) and value else None
    if match is None:
        raise doc.wrong((key,), f"{value!r:.40}: write a time such as 90s, 5m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def is_served(doc: Document) -> bool:
    """Return whether the object comes from an API server, which has checked it."""
    metadata = doc.value.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("uid"))


def check_keys(doc: Document, keys: Keys, at: Field | None = None) -> None:
    """Reject unknown keys, except in objects from an API server: a newer one has more.

    The keys are those of the document, or of the field ``at``.
    """
    if is_served(doc):
        return
    value, base = (doc.value, ()) if at is None else (at.value, at.place)
    for place, text in unknown(value, keys, base):
        raise doc.wrong(place, text)
