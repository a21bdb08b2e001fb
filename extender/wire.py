"""What kube-scheduler sends and wants back: ``k8s.io/kube-scheduler/extender/v1``.

The Go types carry no JSON names, so keys are the Go names with capitals; objects inside are usual
Kubernetes JSON.
"""

from typing import Final

import msgspec

from gpushare.objects import ObjectMeta, Pod


class _Named(msgspec.Struct):
    metadata: ObjectMeta


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct):
    """A filter call: ``NodeNames`` where nodeCacheCapable is set, ``Nodes`` in full elsewhere."""

    pod: Pod = msgspec.field(name="Pod")
    nodes: _NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)

    def full_nodes(self) -> dict[str, msgspec.Raw] | None:
        """The nodes of a ``Nodes`` body by name, untouched; None for a ``NodeNames`` body."""
        if self.nodes is None:
            return None
        items = self.nodes.items or ()
        return {_decode_named(item).metadata.name: item for item in items}


class FilterResult(msgspec.Struct):
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    nodes: dict[str, list[msgspec.Raw]] | None = msgspec.field(name="Nodes", default=None)
    failed_nodes: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    failed_and_unresolvable_nodes: dict[str, str] = msgspec.field(
        name="FailedAndUnresolvableNodes", default_factory=dict
    )
    error: str = msgspec.field(name="Error", default="")


class HostPriority(msgspec.Struct, gc=False):
    """One node's score; prioritize answers with a bare list of them."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class BindingArgs(msgspec.Struct):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindingResult(msgspec.Struct):
    error: str = msgspec.field(name="Error", default="")


_decode_named = msgspec.json.Decoder(_Named).decode
args_decoder: Final = msgspec.json.Decoder(ExtenderArgs)
binding_decoder: Final = msgspec.json.Decoder(BindingArgs)
encode: Final = msgspec.json.Encoder().encode
