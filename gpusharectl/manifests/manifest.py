"""Find the pods that a manifest would create, and how many (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare.errors import SettingsError
from gpusharectl.manifests import train_jobs
from gpusharectl.manifests.fields import Field, Misplaced
from gpusharectl.manifests.workloads import KINDS, kind_of, made_by, requests_memory
from gpusharectl.manifests.yaml_lines import Document, objects, read

NOT_READ: Final = "its pods request GPU memory, and gpushare does not read this kind"
AS_JOB: Final = "Write its pods as a Job, with the number of pods as parallelism"


@dataclass(frozen=True, slots=True)
class Wanted:
    """``pod`` as JSON; ``what`` names the document; ``skipped`` those that create no pods.

    ``at_once`` of the ``count`` pods, if not all, exist before another pod of it is Ready.
    ``controller`` is the owner reference to a workload of which this is true. Of ``groups``, each
    is a gang of its own.
    """

    pod: dict[str, Any]
    count: int
    what: str
    skipped: tuple[str, ...] = ()
    at_once: int | None = None
    controller: dict[str, Any] | None = None
    groups: int = 1

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
                f"of one gang, and has: {names}. Check each separately, or set the labels of a "
                "gang in each pod template"
            )
        ignored = (*self.skipped, *(_name(each) for each in self.pod_groups))
        return replace(self.workloads[0], skipped=ignored)


def manifest(content: bytes, source: str) -> Manifest:
    """Return what a file would create.

    SettingsError if it creates no pods, or a kind that is not read creates some with GPU memory.
    """
    documents = list(objects(read(source, content)))
    runtimes = train_jobs.runtimes_of(doc.value for doc in documents)
    found: list[Wanted] = []
    groups: list[dict[str, Any]] = []
    skipped: list[str] = []
    for doc in documents:
        if doc.value["kind"] == "PodGroup":
            groups.append(doc.value)
        elif doc.value["kind"] == "Pod":
            found.append(Wanted(doc.value, 1, _name(doc.value)))
        elif kind_of(doc.value) is not None:
            made, group = _read(doc, runtimes)
            found += made
            groups += [group] if group is not None else []
        elif requests_memory(doc.value) and not train_jobs.is_runtime(doc.value):
            raise doc.wrong((), f"{_name(doc.value)}: {NOT_READ}. {AS_JOB}")
        else:
            skipped.append(_name(doc.value))
    if not found:
        kinds = ", ".join(KINDS)
        raise SettingsError(f"{source} has no Pod and no workload that creates pods ({kinds})")
    return Manifest(tuple(found), tuple(groups), tuple(skipped), source)


def placed(found: Wanted, namespace: str | None) -> Wanted:
    """Return the pod in ``namespace``, if given. SettingsError if the file names another one."""
    if namespace is None:
        return found
    meta = Field(found.pod).at("metadata").mapping()
    if meta.get("namespace") not in {None, "", namespace}:
        raise SettingsError(
            f"{found.what} is for namespace {meta['namespace']!r}: omit --namespace {namespace}"
        )
    return replace(found, pod={**found.pod, "metadata": {**meta, "namespace": namespace}})


def _read(
    doc: Document, runtimes: train_jobs.Runtimes
) -> tuple[list[Wanted], dict[str, Any] | None]:
    """Return a workload's pods by template, and the PodGroup that its controller creates."""
    workload, what = Field(doc.value), _name(doc.value)
    own = workload.at("metadata")
    name = str(own.at("name").value or own.at("generateName").value or "")
    try:
        made, group, owner = made_by(workload, name, runtimes)
        found = []
        for each in [one for one in made if one.count] or made[:1]:
            _, labels = each.named(0)
            inner = each.template.at("metadata")
            meta = {
                "name": name,
                "namespace": own.at("namespace").value or "",
                **inner.mapping(),
                "labels": {**inner.at("labels").mapping(), **labels},
            }
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
            found.append(
                Wanted(
                    {**pod, "spec": each.template.value["spec"]},
                    max(1, each.count),
                    f"{what} ({each.part})" if each.part else what,
                    at_once=each.at_once if each.at_once < each.count else None,
                    controller=owner,
                    groups=each.groups,
                )
            )
    except Misplaced as err:
        raise doc.wrong(err.place, f"{what}: {err.text}") from err
    return found, group


def _name(document: Mapping[str, Any]) -> str:
    return f"{document['kind']} {Field(document).at('metadata', 'name').value or '(no name)'}"
