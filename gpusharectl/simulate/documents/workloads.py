"""Read the pods that the workloads of documents create (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from msgspec.structs import replace as replaced

from gpushare.objects.model import Pod
from gpusharectl.manifests import kubernetes_keys, train_jobs
from gpusharectl.manifests.fields import Field, Misplaced
from gpusharectl.manifests.workloads import Made, is_suspended, made_by, requests_memory
from gpusharectl.manifests.yaml_lines import Document
from gpusharectl.simulate.documents.values import check_keys, convert, name_of, present


@dataclass(frozen=True, slots=True)
class Created:
    """A pod from a ``template``; ``is_late`` if another pod of its workload has to be Ready first.

    ``pod`` has its labels, and neither its name nor defaults.
    """

    template: Field
    pod: Pod
    name: str
    is_late: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """``pods`` creates them one by one. ``pod_group`` is the PodGroup that comes with them.

    It creates none if ``is_suspended``. ``requests_memory``: some would request GPU memory.
    """

    pods: Iterator[Created]
    pod_group: Document | None
    is_suspended: bool
    requests_memory: bool


def read_workload(doc: Document, runtimes: train_jobs.Runtimes) -> Workload:
    """Return what a workload creates, suspended or not; SettingsError if it is invalid."""
    kind, workload = doc.value["kind"], Field(doc.value)
    if kind in kubernetes_keys.OF_WORKLOAD:
        check_keys(doc, kubernetes_keys.WORKLOAD)
    name = name_of(doc)
    try:
        made = made_by(workload, name, runtimes)
        suspended = is_suspended(workload)
    except Misplaced as err:
        raise doc.wrong(err.place, err.text) from err
    return Workload(
        _created(doc, made),
        replace(doc, value=made.pod_group) if made.pod_group is not None else None,
        suspended,
        any(requests_memory(each.template.value) for each in made.pods),
    )


def _created(doc: Document, made: Made) -> Iterator[Created]:
    owners = [made.owner] if made.owner is not None else None
    namespace = doc.value["metadata"].get("namespace")
    for each in made.pods:
        template = each.template
        check_keys(doc, kubernetes_keys.TEMPLATE, template)
        try:
            inner = template.at("metadata").mapping()
        except Misplaced as err:
            raise doc.wrong(err.place, err.text) from err
        if not each.count:
            continue
        own = {**inner, "namespace": namespace, "ownerReferences": owners}
        value = {"metadata": own, "spec": template.value["spec"], "status": None}
        pod = convert(doc, template.place, present(value), Pod)
        for number in range(each.count):
            called, labels = each.named(number)
            metadata = replaced(pod.metadata, labels={**pod.labels, **labels})
            one = replaced(pod, metadata=metadata)
            yield Created(template, one, called, number >= each.at_once)
