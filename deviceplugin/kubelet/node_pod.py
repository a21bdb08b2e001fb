"""A pod of this node with the amounts that it asks for, which are parsed once (pure)."""

from typing import Self

from gpushare.annotations.pod_annotations import (
    amounts_of,
    asks_for_share,
    containers_of,
    share_of,
    share_statuses,
)
from gpushare.cards.model import ContainerRequest, Inventory, Request, Share
from gpushare.errors import RequestError
from gpushare.objects.model import ContainerStatus, Pod


class NodePod(Pod, frozen=True, gc=False):
    """A pod, and what ``of`` has parsed of it.

    ``asked`` are the containers that ask for devices, in the order of the kubelet's Allocates.
    ``request`` is None where the pod asks for nothing or its amounts are invalid; ``fault`` then
    says why. ``asked`` is None where not even the containers' amounts are valid.
    """

    asks: bool = False
    asked: tuple[ContainerRequest, ...] | None = ()
    request: Request | None = None
    fault: str = ""

    @classmethod
    def of(cls, pod: Pod) -> Self:
        asks, request, fault = asks_for_share(pod), None, ""
        asked: tuple[ContainerRequest, ...] | None = ()
        if asks:
            try:
                request = amounts_of(pod)
                asked = request.containers
            except RequestError as err:
                fault = str(err)
                asked = _containers(pod)
        if asked:
            asked = tuple(container for container in asked if container.units)
        return cls(
            pod.metadata,
            pod.spec,
            pod.status,
            pod.excess,
            asks=asks,
            asked=asked,
            request=request,
            fault=fault,
        )

    @property
    def share_statuses(self) -> tuple[ContainerStatus, ...]:
        """The kubelet's status of each container that holds devices."""
        if self.asked is None:
            return share_statuses(self)
        names = [container.name for container in self.asked]
        return tuple([status for status in self.statuses if status.name in names])

    @property
    def has_run(self) -> bool:
        """Whether a container that holds devices runs or has run, by the kubelet's status."""
        return any(status.has_run for status in self.share_statuses)

    def share(self, inventory: Inventory | None) -> Share | None:
        """Return the pod's share on this node; None if it has none."""
        units = self.request.units if self.request is not None else None
        return share_of(self, inventory, units) if self.asks else None


def _containers(pod: Pod) -> tuple[ContainerRequest, ...] | None:
    try:
        return containers_of(pod)
    except RequestError:
        return None
