"""What is wrong with a node's set-up, each with its cure (pure).

Both plugins that this looks for hand out the same cards as this one, and neither knows of the
other: no scheduler can keep such a node right.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.contract import LABEL_NODE, RESOURCE_MEMORY
from gpushare.errors import QuantityError
from gpushare.objects.model import Node
from gpushare.objects.quantity import parse_units

CONTESTED_ENDS: Final = 3
CONTESTED_SECONDS: Final = 60.0

_OLDER_SOCKET: Final = "aliyungpushare.sock"
_WHOLE_CARDS: Final = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Finding:
    """``reason`` is the Event's; while one ``is_dangerous`` the plugin is not ready."""

    reason: str
    text: str
    is_dangerous: bool


def is_rival(socket: str) -> bool:
    """Whether a socket of this name is of a plugin that must not run beside this one.

    NVIDIA's names its sockets ``nvidia-<resource>.sock``, ``nvidia.sock`` before. MIG devices are
    none of ours: a card in MIG mode is not shared by memory.
    """
    return socket in {_OLDER_SOCKET, "nvidia.sock"} or socket.startswith("nvidia-gpu")


def about_node(node: Node | None, served: Collection[str]) -> list[Finding]:
    """Findings about this node; ``served`` are names of sockets at which a plugin answers."""
    found = []
    if _OLDER_SOCKET in served:
        found.append(
            _second_plugin(f"the older gpushare device plugin serves {_OLDER_SOCKET} on this node")
        )
    whole = sorted(each for each in served if is_rival(each) and each != _OLDER_SOCKET)
    amount = node.capacity.get(_WHOLE_CARDS) if node is not None else None
    if whole or not _is_zero(amount):
        seen = f"{', '.join(whole)} is served" if whole else f"{_WHOLE_CARDS} is {amount}"
        found.append(
            Finding(
                "WholeCardPlugin",
                f"a plugin for whole cards runs on this node ({seen}), and hands out the cards "
                f"that are shared here: keep NVIDIA's device plugin off nodes labelled "
                f"{LABEL_NODE}=true (with the GPU operator, label them "
                f"nvidia.com/gpu.deploy.device-plugin=false)",
                is_dangerous=True,
            )
        )
    if node is not None and node.labels.get(LABEL_NODE) != "true":
        label = node.labels.get(LABEL_NODE)
        found.append(
            Finding(
                "NodeNotLabelled",
                f"the node's label {LABEL_NODE} is {'missing' if label is None else repr(label)}, "
                f"so the DaemonSet will take this plugin away: kubectl label node {node.name} "
                f"{LABEL_NODE}=true --overwrite",
                is_dangerous=False,
            )
        )
    return found


def about_stream(ended_at: Iterable[float], now: float, others: Sequence[str]) -> list[Finding]:
    """The finding that somebody else registers ``aliyun.com/gpu-mem``, if it looks like that.

    ``ended_at`` is when the kubelet ended our list with no restart of its own, ``others`` the
    names of sockets beside ours.
    """
    recent = sum(now - at < CONTESTED_SECONDS for at in ended_at)
    if recent < CONTESTED_ENDS:
        return []
    return [
        _second_plugin(
            f"the kubelet has ended our device list {recent} times within "
            f"{CONTESTED_SECONDS:g} s without having restarted, as it does when another plugin "
            f"registers {RESOURCE_MEMORY} (sockets beside ours: {', '.join(others) or 'none'})"
        )
    ]


def _second_plugin(seen: str) -> Finding:
    return Finding(
        "SecondPlugin",
        f"{seen}: two plugins for {RESOURCE_MEMORY} give out the same memory, so remove the other "
        f"one from this node (the older one's DaemonSet is gpushare-device-plugin-ds)",
        is_dangerous=True,
    )


def _is_zero(amount: str | int | None) -> bool:
    if amount is None:
        return True
    try:
        return parse_units(amount) == 0
    except QuantityError:
        return False  # somebody counts whole cards here, however badly
