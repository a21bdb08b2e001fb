"""Find the pods that a manifest would create, and how many (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare.errors import SettingsError
from gpusharectl.manifests.yaml_lines import read

# By kind: where the pod template is, and the number of pods.
_WORKLOADS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "Deployment": (("spec", "template"), "replicas"),
    "ReplicaSet": (("spec", "template"), "replicas"),
    "ReplicationController": (("spec", "template"), "replicas"),
    "StatefulSet": (("spec", "template"), "replicas"),
    "Job": (("spec", "template"), "parallelism"),
    "CronJob": (("spec", "jobTemplate", "spec", "template"), ""),
    "PodTemplate": (("template",), ""),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """``pod`` as JSON; ``what`` names the document; ``skipped`` those that create no pods.

    ``controller`` is set if it creates the next pod only when the last one is Ready.
    """

    pod: dict[str, Any]
    count: int
    what: str
    skipped: tuple[str, ...] = ()
    controller: dict[str, Any] | None = None

    @property
    def counted(self) -> str:
        """Return ``Job train, 8 times``."""
        return f"{self.what}, {self.count} times" if self.count > 1 else self.what


@dataclass(frozen=True, slots=True)
class Manifest:
    """All workloads of a file, at least one, and the PodGroups as JSON.

    ``skipped`` names the documents that are neither.
    """

    workloads: tuple[Wanted, ...]
    pod_groups: tuple[dict[str, Any], ...]
    skipped: tuple[str, ...]
    source: str

    def only(self) -> Wanted:
        """Return the only workload. SettingsError if there are several."""
        if len(self.workloads) > 1:
            names = ", ".join(each.what for each in self.workloads)
            raise SettingsError(
                f"{self.source} must have one Pod or one workload that creates pods, or only pods "
                f"of one gang, and has: {names}. Check each separately"
            )
        ignored = (*self.skipped, *(_name(each) for each in self.pod_groups))
        return replace(self.workloads[0], skipped=ignored)


def manifest(content: bytes, source: str) -> Manifest:
    """Return what a file would create. SettingsError if it creates no pods."""
    flat: list[Any] = []
    for each in (found.value for found in read(source, content)):
        items = each.get("items") if each.get("kind") == "List" else None
        flat += items if isinstance(items, list) else [each]
    found: list[Wanted] = []
    groups: list[dict[str, Any]] = []
    skipped: list[str] = []
    for each in flat:
        if not isinstance(each, dict) or not isinstance(each.get("kind"), str):
            raise SettingsError(f"{source} has a document without a kind: write Kubernetes objects")
        one = _read(each, source)
        if each["kind"] == "PodGroup":
            groups.append(each)
        elif one is None:
            skipped.append(_name(each))
        else:
            found.append(one)
    if not found:
        kinds = ", ".join(_WORKLOADS)
        raise SettingsError(f"{source} has no Pod and no workload that creates pods ({kinds})")
    return Manifest(tuple(found), tuple(groups), tuple(skipped), source)


def placed(found: Wanted, namespace: str | None) -> Wanted:
    """Return the pod in ``namespace``, if given. SettingsError if the file names another one."""
    if namespace is None:
        return found
    meta = _mapping(found.pod.get("metadata"))
    if meta.get("namespace") not in {None, "", namespace}:
        raise SettingsError(
            f"{found.what} is for namespace {meta['namespace']!r}: omit --namespace {namespace}"
        )
    return replace(found, pod={**found.pod, "metadata": {**meta, "namespace": namespace}})


def _read(document: dict[str, Any], source: str) -> Wanted | None:
    kind = document["kind"]
    if kind == "Pod":
        return Wanted(document, 1, _name(document))
    if kind not in _WORKLOADS:
        return None
    path, number = _WORKLOADS[kind]
    template: Any = document
    for key in path:
        template = template.get(key) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise SettingsError(f"{source}: {_name(document)} has no pod template at {'.'.join(path)}")
    own = _mapping(document.get("metadata"))
    named = {"name": own.get("name") or "", "namespace": own.get("namespace") or ""}
    meta = {**named, **_mapping(template.get("metadata"))}
    spec = template.get("spec") or {}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    count = _mapping(document.get("spec")).get(number, 1) if number else 1
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise SettingsError(f"{source}: {_name(document)} has {number} {count!r}: write a number")
    name = str(named["name"])
    return Wanted(pod, max(1, count), _name(document), controller=one_by_one(document, name))


def one_by_one(document: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the owner reference of a workload whose next pod waits until the last one is Ready.

    Return None for a workload that creates its pods at once.
    """
    spec = _mapping(document.get("spec"))
    if document["kind"] != "StatefulSet" or spec.get("podManagementPolicy") == "Parallel":
        return None
    return {"kind": "StatefulSet", "name": name, "uid": f"StatefulSet {name}", "controller": True}


def _name(document: Mapping[str, Any]) -> str:
    return f"{document['kind']} {_mapping(document.get('metadata')).get('name') or '(no name)'}"


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
