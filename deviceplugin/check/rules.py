"""What is wrong with a node's setup, each finding with its fix (pure).

The two plugins that are looked for here hand out the same GPUs as this one, and neither knows of
the other: no scheduler can keep such a node right.
"""

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.kubelet.node_pod import NodePod
from gpushare.contract import ANNOTATION_ASSIGNED, LABEL_NODE, RESOURCE_MEMORY
from gpushare.errors import QuantityError
from gpushare.objects.model import Node
from gpushare.objects.quantity import parse_units

CONTESTED_ENDS: Final = 3
CONTESTED_SECONDS: Final = 60.0
# The kubelet writes the checkpoint before a container starts. A pod that is missing for a moment
# has just ended, and the watch shows it a little longer.
PATIENCE_SECONDS: Final = 15.0

_OLDER_SOCKET: Final = "aliyungpushare.sock"
_WHOLE_CARDS: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class SetupProblem:
    """``reason`` is the Event's; while one ``is_dangerous`` the plugin is not ready."""

    reason: str
    text: str
    is_dangerous: bool


def is_rival(socket: str) -> bool:
    """Whether a socket of this name belongs to a plugin that must not run next to this one.

    NVIDIA's plugin names its sockets ``nvidia-<resource>.sock``, formerly ``nvidia.sock``. MIG
    devices do not matter here: a GPU in MIG mode is not shared by memory.
    """
    return socket in {_OLDER_SOCKET, "nvidia.sock"} or socket.startswith("nvidia-gpu")


def about_node(node: Node | None, served: Collection[str]) -> list[SetupProblem]:
    """Return findings about this node; ``served`` are sockets at which a plugin answers."""
    found = []
    if _OLDER_SOCKET in served:
        found.append(
            _second_plugin(f"Aliyun gpushare's device plugin serves {_OLDER_SOCKET} on this node")
        )
    whole = sorted(each for each in served if is_rival(each) and each != _OLDER_SOCKET)
    amount = node.capacity.get(_WHOLE_CARDS) if node is not None else None
    if whole or not _is_zero(amount):
        seen = f"{', '.join(whole)} is served" if whole else f"{_WHOLE_CARDS} is {amount}"
        found.append(
            SetupProblem(
                "WholeCardPlugin",
                f"a plugin for whole GPUs runs on this node ({seen}) and hands out the GPUs that "
                f"are shared here: keep NVIDIA's device plugin off nodes labeled "
                f"{LABEL_NODE}=true (with the GPU Operator, label them "
                f"nvidia.com/gpu.deploy.device-plugin=false)",
                is_dangerous=True,
            )
        )
    if node is not None and node.labels.get(LABEL_NODE) != "true":
        label = node.labels.get(LABEL_NODE)
        found.append(
            SetupProblem(
                "NodeNotLabelled",
                f"the node's label {LABEL_NODE} is {'missing' if label is None else repr(label)}, "
                f"so the DaemonSet will remove this plugin: kubectl label node {node.name} "
                f"{LABEL_NODE}=true --overwrite",
                is_dangerous=False,
            )
        )
    return found


def about_stream(
    ended_at: Iterable[float], now: float, others: Sequence[str]
) -> list[SetupProblem]:
    """Return the finding that another plugin registers ``aliyun.com/gpu-mem``, if it seems so.

    ``ended_at`` is when the kubelet ended our list without a restart, ``others`` are the names of
    the other sockets.
    """
    recent = sum(now - at < CONTESTED_SECONDS for at in ended_at)
    if recent < CONTESTED_ENDS:
        return []
    return [
        _second_plugin(
            f"the kubelet has ended this plugin's device list {recent} times within "
            f"{CONTESTED_SECONDS:g} s without a restart, as it does when another plugin registers "
            f"{RESOURCE_MEMORY} (other sockets: {', '.join(others) or 'none'})"
        )
    ]


@dataclass(frozen=True, slots=True)
class Missing:
    """Pods that have been missing in the kubelet's checkpoint for PATIENCE_SECONDS.

    A pod that the plugin has reported is *forgotten*: the checkpoint was lost afterwards. The
    kubelet counts its devices as free until a new pod replaces it, because it never reads a
    plugin's view of what is in use.

    A pod that was never reported was *never asked for*: a kubelet that has lost its checkpoint
    knows of no device plugin until one registers, and starts containers that ask for our resource
    without a call (isDevicePluginResource in pkg/kubelet/cm/devicemanager/manager.go). No GPU was
    chosen for it.
    """

    forgotten: list[NodePod] = field(default_factory=list)
    never_asked_for: list[NodePod] = field(default_factory=list)


class MissingPods:
    """Remembers since when each pod has been missing, by the caller's clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._never_asked_for: set[str] = set()

    def check(
        self, pods: Iterable[NodePod], held: Container[tuple[str, str]], now: float
    ) -> Missing:
        """Return the pods with a running container that is not in the checkpoint.

        ``held`` are pod uid and container name of the checkpoint's entries, ``now`` seconds of a
        monotonic clock. A pod stays of its kind: another of its containers may be served later.
        """
        missing = [pod for pod in pods if _is_missing(pod, held)]
        self._since = {pod.uid: self._since.get(pod.uid, now) for pod in missing}
        self._never_asked_for &= self._since.keys()
        found = Missing()
        for pod in missing:
            if now - self._since[pod.uid] < PATIENCE_SECONDS:
                continue
            if pod.annotations.get(ANNOTATION_ASSIGNED) != "true":
                self._never_asked_for.add(pod.uid)
            is_known = pod.uid not in self._never_asked_for
            (found.forgotten if is_known else found.never_asked_for).append(pod)
        return found

    def reset(self) -> None:
        """The checkpoint cannot be read: no pod counts as missing until it can."""
        self._since = {}


def _is_missing(pod: NodePod, held: Container[tuple[str, str]]) -> bool:
    if pod.is_terminal or pod.metadata.deletion_timestamp is not None:
        return False
    running = (s.name for s in pod.share_statuses if s.state and s.state.running is not None)
    return any((pod.uid, name) not in held for name in running)


def _second_plugin(seen: str) -> SetupProblem:
    return SetupProblem(
        "SecondPlugin",
        f"{seen}: two plugins for {RESOURCE_MEMORY} hand out the same memory, so remove the other "
        f"one from this node (the DaemonSet of Aliyun gpushare is gpushare-device-plugin-ds)",
        is_dangerous=True,
    )


def _is_zero(amount: str | int | None) -> bool:
    if amount is None:
        return True
    try:
        return parse_units(amount) == 0
    except QuantityError:
        return False  # whole GPUs are counted here, in whatever form
