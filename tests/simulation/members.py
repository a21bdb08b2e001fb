"""What one replica was told of the members of gangs, independent of what it makes of it."""

from collections.abc import Iterator

from extender.watch.cluster import PodHandler
from extender.watch.live_pods import PodUse
from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM
from gpushare.objects.model import Pod


class Members:
    """Pass pods from an informer to their handler, and note those of gangs.

    ``whole`` are the gangs of which it was told that the minimum was bound at one time, until none
    of their members has a node.
    """

    def __init__(self, handler: PodHandler) -> None:
        self.whole: set[str] = set()
        self.is_listing = False
        self._handler = handler
        self._pods: dict[str, Pod] = {}

    def present(self, gang: str) -> list[Pod]:
        """Return the live members that are not being deleted."""
        return [
            pod
            for pod in self._pods.values()
            if gang_of(pod) == gang and not pod.metadata.deletion_timestamp
        ]

    def gangs(self) -> set[str]:
        return {gang_of(pod) for pod in self._pods.values()}

    def replaced(self, items: list[Pod | PodUse]) -> Iterator[None]:
        self.is_listing = True
        yield from self._handler.replaced(items)
        self.is_listing = False
        before, self._pods = self.gangs(), {pod.uid: pod for pod in items if gang_of(pod)}
        for gang in before | self.gangs():
            self._note(gang)

    def changed(self, item: Pod | PodUse) -> None:
        self._handler.changed(item)
        if isinstance(item, Pod) and gang_of(item):
            self._pods[item.uid] = item
            self._note(gang_of(item))

    def deleted(self, item: Pod | PodUse) -> None:
        self._handler.deleted(item)
        known = self._pods.pop(item.uid, None)
        if known is not None:
            self._note(gang_of(known))

    def _note(self, gang: str) -> None:
        present = self.present(gang)
        bound = sum(bool(pod.node) for pod in present)
        if bound == 0:
            self.whole.discard(gang)
        elif bound >= minimum_of(present[0]):
            self.whole.add(gang)


def gang_of(pod: Pod | PodUse) -> str:
    """Return the name of the pod's gang; empty without one."""
    return pod.labels.get(LABEL_GANG, "") if isinstance(pod, Pod) else ""


def minimum_of(pod: Pod) -> int:
    return int(pod.labels[LABEL_GANG_MINIMUM])
