"""Find the gang that the pods of a manifest form (pure)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpushare.errors import UNDECODABLE, SettingsError
from gpushare.groups.model import GroupKey, PodGroup
from gpushare.groups.pod_groups import API_GROUPS, PodGroupMeta, PodGroupObject, value_of
from gpushare.groups.sources import key_of, minimum_of
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import read_pod
from gpusharectl.manifests.manifest import Wanted


@dataclass(frozen=True, slots=True)
class WantedGang:
    """``pod_group`` is None if the file has none for it."""

    key: GroupKey
    parts: tuple[Wanted, ...]
    pod_group: PodGroup | None

    @property
    def what(self) -> str:
        return f"gang {self.key.name} ({'; '.join(each.counted for each in self.parts)})"

    def body(self, pods: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the question about these pods, one for each part.

        It is about the pods that exist before one of them is Ready if these are too few.
        """
        minimum = self._minimum
        at_once = [part.count if part.at_once is None else part.at_once for part in self.parts]
        is_stuck = minimum > sum(at_once)
        found: dict[str, Any] = {"pods": []}
        for pod, part, first in zip(pods, self.parts, at_once, strict=True):
            one = {"pod": pod, "count": part.count}
            if is_stuck and part.controller is not None:
                meta = {**pod["metadata"], "ownerReferences": [part.controller]}
                one = {"pod": {**pod, "metadata": meta}, "count": first}
            if one["count"]:
                found["pods"].append(one)
        if self.pod_group is not None:
            found |= {"minimum": self.pod_group.minimum, "zoneKey": self.pod_group.zone_key}
        elif is_stuck and self.key.source in API_GROUPS:
            found["minimum"] = minimum
        return found

    @property
    def _minimum(self) -> int:
        """Return how many pods have to start together; all, if no PodGroup of the file says it."""
        if self.key.source in API_GROUPS:
            stated = self.pod_group.minimum if self.pod_group is not None else None
            return stated or sum(part.count for part in self.parts)
        minima = (minimum_of(pod, self.key.source) for pod in map(_pod, self.parts) if pod)
        return max((each for each in minima if isinstance(each, int)), default=0)


def gang_of(
    workloads: tuple[Wanted, ...], pod_groups: Iterable[Mapping[str, Any]]
) -> WantedGang | None:
    """Return the gang of all these pods; None if they are not of one gang.

    SettingsError if the PodGroup in the file states no minimum, and for several gangs of one
    workload.
    """
    keys = {_key(each) for each in workloads}
    key = keys.pop()
    if keys or key is None:
        return None
    for each in workloads:
        if each.groups > 1:
            raise SettingsError(
                f"{each.what} has {each.groups} groups, and each is a gang of its own: write "
                "replicas: 1 to check one of them"
            )
    found = next((each for each in map(_pod_group, pod_groups) if _is_of(each, key)), None)
    if found is not None and found.minimum is None:
        field = "minMember" if found.key.source == "pod-group" else "a policy with minCount"
        raise SettingsError(f"PodGroup {key.name} states no minimum: write {field} in its spec")
    return WantedGang(key, workloads, found)


def _key(found: Wanted) -> GroupKey | None:
    pod = _pod(found)
    return key_of(pod) if pod is not None else None


def _pod(found: Wanted) -> Pod | None:
    try:
        return read_pod(msgspec.Raw(msgspec.json.encode(found.pod)))
    except (TypeError, *UNDECODABLE):
        return None  # the question about the pod says what is wrong


def _is_of(found: PodGroup | None, key: GroupKey) -> bool:
    if found is None:
        return False
    same = {found.key.namespace or key.namespace} == {key.namespace or found.key.namespace}
    return same and (found.key.source, found.key.name) == (key.source, key.name)


def _pod_group(document: Mapping[str, Any]) -> PodGroup | None:
    """Read a PodGroup; None for a kind that gpushare does not know."""
    group, _, version = str(document.get("apiVersion")).partition("/")
    sources = (each for each, known in API_GROUPS.items() if known[0] == group)
    source = next((each for each in sources if version in API_GROUPS[each][1]), None)
    meta = document.get("metadata")
    if source is None or not isinstance(meta, dict):
        return None
    named = PodGroupMeta(str(meta.get("name")), str(meta.get("namespace") or ""))
    try:
        spec = msgspec.Raw(msgspec.json.encode(document.get("spec")))
    except TypeError:  # YAML has keys that JSON does not have
        spec = msgspec.Raw(b"null")
    return value_of(PodGroupObject(named, spec), source)
