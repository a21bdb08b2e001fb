"""Which binding a node gets, told from its runtime, its kubelet and what reads CDI files (pure).

Late binding is exact and needs a runtime that resolves CDI names; without one it shows a container
no card. Early binding works everywhere. From which versions on what is there:

* the kubelet passes CDI names on by default from Kubernetes 1.29 on (DevicePluginCDIDevices);
* containerd 1.6 ignores them, 1.7 resolves them if ``enable_cdi`` is set, 2 unless it is unset;
* CRI-O has resolved them since 1.23.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from gpushare.objects import NodeSystemInfo

BindingName = Literal["late", "early"]
BINDINGS: Final[tuple[BindingName, ...]] = ("late", "early")

_KUBELET_WITH_CDI: Final = (1, 29)
_CONTAINERD_WITH_CDI: Final = (1, 7)
_CONTAINERD_BY_DEFAULT: Final = (2, 0)
_VERSION: Final = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})")


class Probe(StrEnum):
    """Whether somebody reads CDI files here.

    UNREAD is no proof that nobody would: a runtime that started before the CDI folder was made
    begins to watch it at the first container that names a CDI device.
    """

    READ = "read"
    UNREAD = "unread"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Choice:
    """``why`` is one sentence. ``names_cdi_too``: early answers carry the CDI name as well.

    A runtime that can resolve it does, and is then seen to read CDI files; any other drops it.
    """

    binding: BindingName
    why: str
    names_cdi_too: bool = False


def choose(
    node: NodeSystemInfo | None,
    probe: Probe,
    *,
    forced: BindingName | None = None,
    needs_cdi: bool = False,
    last: BindingName | None = None,
) -> Choice:
    """The binding for a node whose ``status.nodeInfo`` is ``node``; None before it is known.

    ``last`` is what this node had before. ``needs_cdi``: early binding would be of no use here, so
    it is chosen only where late binding cannot work at all.
    """
    if forced is not None:
        return Choice(forced, f"--binding={forced} says so")
    if node is None:
        return _unknown(probe, "the Node has not been read yet", needs_cdi=needs_cdi, last=last)
    kubelet = _version(node.kubelet_version)
    if kubelet is None:
        what = f"kubelet version {node.kubelet_version[:63]!r} is none"
        return _unknown(probe, what, needs_cdi=needs_cdi, last=last)
    if kubelet < _KUBELET_WITH_CDI:
        return Choice(
            "early", f"kubelet {node.kubelet_version[:63]} passes no CDI names on, as 1.29 does"
        )
    return _by_runtime(node.container_runtime_version, probe, needs_cdi=needs_cdi, last=last)


def _by_runtime(runtime: str, probe: Probe, *, needs_cdi: bool, last: BindingName | None) -> Choice:
    name, _, written = runtime.partition("://")
    version = _version(written)
    shown = f"{name} {written[:63]}"
    if name not in {"containerd", "cri-o"} or version is None:
        what = f"runtime {runtime[:63]!r} is none whose CDI is known"
        return _unknown(probe, what, needs_cdi=needs_cdi, last=last)
    if name == "containerd" and version < _CONTAINERD_WITH_CDI:
        return Choice("early", f"{shown} resolves no CDI names, which 1.7 can and 2 does")
    if probe is Probe.READ:
        return Choice("late", f"{shown} can resolve CDI names, and CDI files are read here")
    if needs_cdi:
        return Choice("late", f"{shown} can resolve CDI names, and --inject=cdi needs that")
    if name == "containerd" and version < _CONTAINERD_BY_DEFAULT:
        why = f"{shown} resolves CDI names only if told to, and nobody was seen to read CDI files"
        return Choice("early", why, names_cdi_too=probe is Probe.UNREAD)
    if probe is Probe.UNREAD:
        why = f"{shown} can resolve CDI names, but nobody has read CDI files here so far"
        return Choice("early", why, names_cdi_too=True)
    return Choice("late", f"{shown} resolves CDI names")


def _unknown(probe: Probe, what: str, *, needs_cdi: bool, last: BindingName | None) -> Choice:
    if needs_cdi:
        return Choice("late", f"{what}, and --inject=cdi needs CDI")
    if last is not None:
        return Choice(last, f"{what}, so it stays as it was")
    if probe is Probe.READ:
        return Choice("late", f"{what}, and CDI files are read here")
    return Choice("early", f"{what}, and nobody was seen to read CDI files")


def _version(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found is not None else None
