"""A pod of a simulation that has no node yet (pure)."""

from dataclasses import dataclass

import msgspec

from gpushare.cards import placement_policy
from gpushare.contract import LABEL_CARD_COUNT
from gpushare.objects.model import Pod
from gpushare.quota.order import Given, Standing
from gpusharectl.simulate.scenario import PodEvent


@dataclass(slots=True)
class QueuedPod:
    """Of one ``kind`` all fit or none; ``says`` is why it could never run on any node."""

    event: PodEvent
    number: int
    kind: bytes
    says: str = ""

    @property
    def standing(self) -> Standing:
        pod, number = self.event.pod, f"{self.number:08}"
        created = f"{self.event.at:010}{number}"
        return Standing(pod.priority, Given.NOTHING, pod.metadata.namespace, created, number)


def kind_of(pod: Pod, namespace: str) -> bytes:
    """Return a key that is equal for pods with equal requests and constraints.

    ``namespace`` is empty if pods of all namespaces are alike.
    """
    wishes = [pod.annotations.get(key) for key in placement_policy.ANNOTATIONS]
    metadata = (pod.labels.get(LABEL_CARD_COUNT), namespace, wishes)
    return msgspec.json.encode((metadata, pod.spec), order="sorted")
