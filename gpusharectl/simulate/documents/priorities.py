"""Read PriorityClasses from documents, and give pods their priority (pure)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from gpushare.objects.model import Pod
from gpusharectl.manifests import kubernetes_keys
from gpusharectl.manifests.yaml_lines import Document
from gpusharectl.simulate.documents.values import check_keys, name_of

KIND: Final = "PriorityClass"
_MOST: Final = 2**31
_PREEMPTION: Final = ("PreemptLowerPriority", "Never")


@dataclass(frozen=True, slots=True)
class _Class:
    value: int
    preemption: str


class PriorityClasses:
    """Keeps those of all documents, and Kubernetes' own. SettingsError for an invalid document."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._by_name = {
            "system-cluster-critical": _Class(2_000_000_000, _PREEMPTION[0]),
            "system-node-critical": _Class(2_000_001_000, _PREEMPTION[0]),
        }
        self._usual: _Class | None = None
        for doc in documents:
            if doc.value.get("kind") == KIND:
                self._add(doc)

    def _add(self, doc: Document) -> None:
        check_keys(doc, kubernetes_keys.PRIORITY_CLASS)
        name, value = name_of(doc), doc.value.get("value")
        if type(value) is not int or not -_MOST <= value < _MOST:
            raise doc.wrong(("value",), f"{value!r:.40}: write a whole number of 32 bits")
        preemption = doc.value.get("preemptionPolicy") or _PREEMPTION[0]
        if preemption not in _PREEMPTION:
            raise doc.wrong(("preemptionPolicy",), f"{preemption!r:.40}: write {_PREEMPTION[1]}")
        if name in self._by_name and not name.startswith("system-"):
            raise doc.wrong(("metadata", "name"), f"PriorityClass {name} is defined twice")
        found = self._by_name[name] = _Class(value, preemption)
        if doc.value.get("globalDefault") is True:
            self._usual = found

    def applied(self, pod: Pod, spec: Any) -> Pod:
        """Return the pod with the priority that admission gives it; ``spec`` is its own as JSON.

        One that is written in the spec stays.
        """
        if pod.spec.priority is not None:
            return pod
        name = spec.get("priorityClassName")
        found = self._by_name.get(str(name)) if name else self._usual
        if found is None:
            return pod
        policy = pod.spec.preemption_policy or found.preemption
        return replace(pod, spec=replace(pod.spec, priority=found.value, preemption_policy=policy))
