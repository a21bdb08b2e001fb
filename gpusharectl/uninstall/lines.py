"""What ``gpushare uninstall`` prints before it changes anything (pure)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.contract import GATE_ADMISSION, LABEL_NODE, RESOURCE_MEMORY
from gpushare.objects.model import Node, Pod
from gpushare.text.listed import listed
from gpusharectl.uninstall import rules
from gpusharectl.uninstall.rules import ObjectKind

NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class Installed:
    """What of gpushare is in a cluster.

    ``releases`` are Helm's Secrets. ``nodes`` are those that gpushare has marked or is to serve,
    ``others`` those of them with Aliyun gpushare. ``namespace`` is empty if none is to be
    removed. ``gated`` are the pods that wait behind our scheduling gate.
    """

    objects: Sequence[tuple[ObjectKind, str]] = ()
    releases: Sequence[str] = ()
    namespace: str = ""
    nodes: Sequence[Node] = ()
    others: Sequence[str] = ()
    gated: Sequence[Pod] = ()

    @property
    def can_clean(self) -> bool:
        """Return true if the plugin's files on the nodes can be reached."""
        there = {name for kind, name in self.objects if kind is rules.DAEMON_SETS}
        return rules.PLUGIN in there

    def is_there(self, *, labels: bool) -> bool:
        """Return true if there is something to remove; ``labels``: also labels of nodes."""
        own = [node for node in self.nodes if node.name not in self.others]
        marks = any(rules.traces(node, labels=labels) or rules.totals(node) for node in own)
        return bool(self.objects or self.releases or self.namespace or self.gated or marks)


def not_installed(found: Installed, system: str, *, keeps_namespace: bool) -> Iterator[str]:
    """Say that there is nothing to remove, and what stays."""
    namespace = "" if keeps_namespace else f"no namespace {system}, "
    yield (
        f"gpushare is not installed here: {namespace}no object of gpushare in the "
        "cluster, and no node with its annotations or resources. There is nothing to remove."
    )
    own = [node.name for node in found.nodes if node.name not in found.others]
    if own:
        yield f"The label {LABEL_NODE} stays on {listed(own, NAMED)}; --labels removes it."
    if found.others:
        yield f"{RESOURCE_MEMORY} on {listed(found.others, NAMED)} is Aliyun gpushare's."


def plan(found: Installed, *, labels: bool) -> Iterator[str]:
    """Name everything that is removed, except the pods that are evicted."""
    for kind, name in found.objects:
        yield f"  {kind.name} {name}"
    for name in found.releases:
        yield f"  Secret {name}"
    if found.gated:
        keys = listed([pod.key for pod in found.gated], NAMED)
        yield f"  from pods: the scheduling gate {GATE_ADMISSION}: {keys}"
    for node in found.nodes:
        names = dict.fromkeys(["files"] if found.can_clean else [])
        patches = (rules.traces(node, labels=labels), rules.totals(node))
        for part in (part for patch in patches for part in patch.values()):
            names |= dict.fromkeys(name for keys in part.values() for name in keys)
        if names:
            yield f"  from node {node.name}: {', '.join(names)}"
    if found.namespace:
        yield f"  Namespace {found.namespace} with everything in it"
    if any(rules.traces(node, labels=labels) for node in found.nodes) and not found.can_clean:
        yield (
            f"Files on nodes stay as they are: there is no DaemonSet {rules.PLUGIN} by which to "
            "remove them"
        )
