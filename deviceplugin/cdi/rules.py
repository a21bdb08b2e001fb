"""Chooses the binding of a node from its runtime, its kubelet and a probe of CDI files (pure).

Late binding is exact and needs a runtime that resolves CDI names; without one a container sees no
GPU. Early binding works everywhere. The required versions:

* the kubelet passes CDI names on by default since Kubernetes 1.29 (DevicePluginCDIDevices);
* containerd 1.6 ignores them, 1.7 resolves them if ``enable_cdi`` is set, 2 unless it is unset;
* containerd before 1.7.12 has CDI's library 0.5.4, which rejects files with annotations;
* CRI-O has resolved them since 1.23, and sets the variables of the image and of the kubelet after
  those of CDI files (server/container_create.go; tried with 1.34.0), so these never apply there;
* kubelets before 1.32 send the names as annotations too (kubernetes/kubernetes#126435), which CRI-O
  copies to the container, where NVIDIA's runtime prefers them to the environment.

Any program may read a CDI file, for example a file scanner. So a read file proves nothing about a
runtime that does not resolve names by itself.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from gpushare.objects.model import NodeSystemInfo

BindingName = Literal["late", "early"]
BINDINGS: Final[tuple[BindingName, ...]] = ("late", "early")

_KUBELET_WITH_CDI: Final = (1, 29)
_CONTAINERD_WITH_CDI: Final = (1, 7)
_CONTAINERD_WITH_ANNOTATED_FILES: Final = (1, 7, 12)
_CONTAINERD_BY_DEFAULT: Final = (2, 0)
_VERSION: Final = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?")


class Probe(StrEnum):
    """Whether CDI files are read here.

    UNREAD is no proof of the contrary: a runtime that started before the CDI folder was created
    starts to watch it at the first container that names a CDI device.
    """

    READ = "read"
    UNREAD = "unread"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Choice:
    """``why`` is one sentence. ``names_cdi_too``: early answers carry the CDI name as well.

    A runtime that can resolve it does, and the probe then sees it read CDI files; any other ignores
    it. ``may_change``: another probe may have another result while the Node is unchanged.
    """

    binding: BindingName
    why: str
    names_cdi_too: bool = False
    may_change: bool = False


def choose(
    node: NodeSystemInfo | None,
    probe: Probe,
    *,
    forced: BindingName | None = None,
    needs_cdi: bool = False,
    has_edits: bool = False,
    last: BindingName | None = None,
) -> Choice:
    """Return the binding for a node whose ``status.nodeInfo`` is ``node``; None before it is known.

    ``last`` is the node's binding before. ``needs_cdi``: early binding would be useless here, so it
    is chosen only where late binding cannot work at all. ``has_edits``: NVIDIA's CDI files name the
    GPUs, so late binding would not need NVIDIA's runtime.
    """
    if forced is not None:
        return Choice(forced, f"--binding={forced} is set")
    if node is None:
        what = "the Node has not been read yet"
        if needs_cdi or last is None:
            return _unknown(what, needs_cdi=needs_cdi)
        return Choice(last, f"{what}, so it stays unchanged")
    kubelet = _version(node.kubelet_version)
    if kubelet is None:
        return _unknown(
            f"kubelet version {node.kubelet_version[:63]!r} is invalid", needs_cdi=needs_cdi
        )
    if kubelet < _KUBELET_WITH_CDI:
        return Choice(
            "early", f"kubelet {node.kubelet_version[:63]} passes no CDI names on; 1.29 does"
        )
    if late_needs_edits(node) and not (needs_cdi or has_edits):
        why = (
            "no CDI file of NVIDIA's names every GPU, and CRI-O sets the variables of the image "
            "and of the kubelet after those of CDI files"
        )
        return Choice("early", why, may_change=True)
    return _by_runtime(node.container_runtime_version, probe, needs_cdi=needs_cdi)


def late_needs_edits(node: NodeSystemInfo | None) -> bool:
    """Whether late binding gives a container its GPU only by NVIDIA's own edits in the share.

    That is so on CRI-O, where the variable of a share never reaches NVIDIA's runtime.
    """
    return node is not None and node.container_runtime_version.startswith("cri-o://")


def _by_runtime(runtime: str, probe: Probe, *, needs_cdi: bool) -> Choice:
    name, _, written = runtime.partition("://")
    version = _version(written)
    shown = f"{name} {written[:63]}"
    if name not in {"containerd", "cri-o"} or version is None:
        what = f"the CDI support of runtime {runtime[:63]!r} is not known"
        return _unknown(what, needs_cdi=needs_cdi)
    if name == "containerd" and version < _CONTAINERD_WITH_CDI:
        return Choice("early", f"{shown} resolves no CDI names; 1.7 can, and 2 does by default")
    if name == "containerd" and version < _CONTAINERD_WITH_ANNOTATED_FILES:
        return Choice("early", f"{shown} cannot read gpushare's CDI files; 1.7.12 can")
    if needs_cdi:
        return Choice("late", f"{shown} can resolve CDI names, and --inject=cdi needs that")
    if name == "containerd" and version < _CONTAINERD_BY_DEFAULT:
        why = f"{shown} resolves CDI names only if configured to, which cannot be detected"
        return Choice("early", why, names_cdi_too=True)
    if probe is Probe.READ:
        return Choice("late", f"{shown} can resolve CDI names, and CDI files are read here")
    if probe is Probe.UNREAD:
        why = f"{shown} can resolve CDI names, but no CDI file has been read here so far"
        return Choice("early", why, names_cdi_too=True, may_change=True)
    return Choice("late", f"{shown} resolves CDI names")


def _unknown(what: str, *, needs_cdi: bool) -> Choice:
    if needs_cdi:
        return Choice("late", f"{what}, and --inject=cdi needs CDI")
    return Choice("early", f"{what}, and early binding needs no CDI")


def _version(text: str) -> tuple[int, ...] | None:
    found = _VERSION.match(text)
    return tuple(int(each) for each in found.groups("0")) if found is not None else None
