"""The annotation that says where a released pod has room.

Users can write it, so it is only a preference among equals.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from gpushare.contract import ANNOTATION_SLOT
from gpushare.errors import UNDECODABLE
from gpushare.objects.model import Pod


class _Hint(msgspec.Struct):
    node: str = ""


_decode: Final = msgspec.json.Decoder(_Hint).decode


def encode(node: str, cards: Sequence[str]) -> str:
    """Return the annotation's value; ``cards`` are UUIDs."""
    return msgspec.json.encode({"node": node, "cards": list(cards)}).decode()


def is_released(pod: Pod) -> bool:
    """Return whether the extender has removed a pod's gate, and no other gate or node is left."""
    return ANNOTATION_SLOT in pod.annotations and not pod.node and not pod.gates


def is_nominated(pod: Pod) -> bool:
    """Return whether a pod without a node has that of its hint as nominated node.

    Then the extender has nominated it. kube-scheduler nominates where it preempts pods.
    """
    nominated = pod.status.nominated_node_name
    return bool(nominated) and not pod.node and nominated == hinted_node(pod)


def hinted_node(pod: Pod) -> str:
    """Return the node in a pod's annotation; empty without one that can be read."""
    text = pod.annotations.get(ANNOTATION_SLOT)
    if text is None:
        return ""
    try:
        return _decode(text).node
    except (*UNDECODABLE, UnicodeEncodeError):
        return ""
