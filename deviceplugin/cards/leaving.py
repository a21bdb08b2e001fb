"""How device IDs leave the kubelet's device list: unhealthy for a minute first (pure).

The kubelet chooses among the healthy devices of the list, calls Allocate, and looks each device up
in the list again. Where one has left the list meanwhile, the kubelet panics: it reads the topology
of a device that is nil (allocateContainerResources in pkg/kubelet/cm/devicemanager/manager.go). It
then starts again, and fails all pods that it admits before the plugin has registered. No later call
chooses an unhealthy device.
"""

from typing import Final

from deviceplugin.cards.held_devices import Listed
from gpushare.clock import Clock

LEAVING_SECONDS: Final = 60.0  # many times what choosing devices and an Allocate may take


class Leaving:
    """Knows which IDs have left the lists that were sent within the last LEAVING_SECONDS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listed: tuple[Listed, ...] = ()
        self._until: dict[str, float] = {}

    def take(self, listed: tuple[Listed, ...]) -> None:
        """Note that a list with these IDs, and no others, is sent now."""
        changed, self._listed = set(self._listed) - set(listed), listed
        if not changed and not self._until:
            return
        now = self._clock.monotonic()
        present = set[str]().union(*(each.ids() for each in listed))
        left = set[str]().union(*(each.ids() for each in changed)) - present
        self._until = {
            text: until
            for text, until in self._until.items()
            if until > now and text not in present
        } | dict.fromkeys(left, now + LEAVING_SECONDS)

    @property
    def ids(self) -> frozenset[str]:
        """The IDs that the list must still have, as unhealthy."""
        now = self._clock.monotonic()
        return frozenset(text for text, until in self._until.items() if until > now)
