"""kube-scheduler's extender API, ``k8s.io/kube-scheduler/extender/v1``, as typed values.

The Go types have no JSON names, so keys are the capitalized Go names; the objects inside are
ordinary Kubernetes JSON.
"""

from typing import Final

import msgspec

from gpushare.objects.pod_reader import UndecodedPod


class _NamedMeta(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _NamedMeta


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct):
    """A filter or prioritize call: ``NodeNames`` with nodeCacheCapable, else full ``Nodes``."""

    pod: UndecodedPod = msgspec.field(name="Pod")
    nodes: _NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)

    def full_nodes(self) -> dict[str, msgspec.Raw] | None:
        """Return the nodes of a ``Nodes`` body by name; None for a ``NodeNames`` body."""
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
    """One node's score; the response of prioritize is a list of these."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class BindingArgs(msgspec.Struct):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindingResult(msgspec.Struct):
    error: str = msgspec.field(name="Error", default="")


class MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct):
    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(msgspec.Struct):
    pods: list[_Named] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct):
    """A preempt call: UIDs with nodeCacheCapable, else full pods."""

    pod: UndecodedPod = msgspec.field(name="Pod")
    full: dict[str, Victims] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)

    def proposed(self) -> dict[str, MetaVictims] | None:
        """Return each node's victims in the form of the response; None without proposals."""
        if self.meta is not None:
            return self.meta
        if self.full is None:
            return None
        return {
            node: MetaVictims(
                [MetaPod(pod.metadata.uid) for pod in victims.pods or ()],
                victims.num_pdb_violations,
            )
            for node, victims in self.full.items()
        }


class PreemptionResult(msgspec.Struct):
    meta: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


_decode_named = msgspec.json.Decoder(_Named).decode
decode_args: Final = msgspec.json.Decoder(ExtenderArgs).decode
decode_binding: Final = msgspec.json.Decoder(BindingArgs).decode
decode_preemption: Final = msgspec.json.Decoder(PreemptionArgs).decode
encode: Final = msgspec.json.Encoder().encode
