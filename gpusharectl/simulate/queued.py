"""A pod of a simulation that has no node yet (pure)."""

from dataclasses import dataclass
from typing import Final

import msgspec

from gpushare.contract import (
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_ISOLATION,
    ANNOTATION_NODE_POLICY,
    LABEL_CARD_COUNT,
)
from gpushare.objects.model import Pod
from gpushare.quota.order import Given, Standing
from gpusharectl.simulate.scenario import PodEvent

WISHES: Final = (
    ANNOTATION_NODE_POLICY,
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_ISOLATION,
)


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
    wishes = [pod.annotations.get(key) for key in WISHES]
    metadata = (pod.labels.get(LABEL_CARD_COUNT), namespace, wishes)
    return msgspec.json.encode((metadata, pod.spec), order="sorted")
