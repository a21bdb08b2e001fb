"""Sum up the containers of a pod that has more of them than are kept (pure).

The API server accepts tens of thousands in one pod. gpushare places no such pod, but one that was
created with a node counts there with what it requests.
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import force_setattr

from gpushare.contract import RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.objects.model import (
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    Resources,
    Terminated,
    names_memory,
)
from gpushare.objects.pod_requests import MILLI, requests_of_containers
from gpushare.objects.scheduling import Present

MOST_CONTAINERS: Final = 256  # app containers, and init containers
TOO_MANY: Final = f"it has more than {MOST_CONTAINERS} containers: use fewer"

PRESENT: Final = "present"
RUNS: Final = ContainerState(running=Present())
ENDED: Final = ContainerState(terminated=Terminated("9999"))
_SUM: Final = "*"  # no container can have this name
_UNREADABLE: Final = "unreadable"


def has_too_many(pod: Pod) -> bool:
    """Return whether the pod has more containers than are kept, or had before ``sum_up``."""
    most = max(len(pod.init_containers), len(pod.containers))
    return pod.excess == TOO_MANY or most > MOST_CONTAINERS


def sum_up(pod: Pod) -> None:
    """Replace, in place, all containers by one that requests as much as all of them together.

    That is Kubernetes' effective request of each resource (KEP-753); an amount that cannot be read
    stays unreadable. The statuses of the containers that hold devices are replaced by one, and
    those of the others by another.
    """
    held = {
        each.name
        for each in pod.all_containers
        if names_memory(each) and _amount(each) not in {0, "0"}
    }
    limits: dict[str, str | int]
    try:
        limits = {name: _text(amount) for name, amount in requests_of_containers(pod).items()}
    except RequestError:
        limits = {RESOURCE_MEMORY if held else "cpu": _UNREADABLE}
    mine = [each for each in pod.statuses if each.name in held]
    others = [each for each in pod.statuses if each.name not in held]
    statuses = [_merged(name, some) for name, some in ((_SUM, mine), ("", others)) if some]
    force_setattr(pod.spec, "init_containers", None)
    force_setattr(pod.spec, "containers", (Container(_SUM, Resources(limits)),))
    force_setattr(pod.status, "init_container_statuses", None)
    force_setattr(pod.status, "container_statuses", tuple(statuses) or None)
    force_setattr(pod, "excess", TOO_MANY)


def _amount(container: Container) -> str | int:
    limits, requests = container.limits, container.requests
    return limits.get(RESOURCE_MEMORY, requests.get(RESOURCE_MEMORY, 0))


def _text(amount: int) -> str:
    return str(amount // MILLI) if amount % MILLI == 0 else f"{amount}m"


def _merged(name: str, found: Iterable[ContainerStatus]) -> ContainerStatus:
    runs = ran = started = False
    for each in found:
        started = started or bool(each.container_id)
        ran = ran or each.has_run
        runs = runs or (each.state is not None and each.state.running is not None)
    state = RUNS if runs else ENDED if ran else None
    return ContainerStatus(name, PRESENT if started else None, state)
