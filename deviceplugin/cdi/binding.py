"""The binding in force, chosen again when the Node's runtime changes or CDI files start to be read.

A change affects only later answers. A container that was answered before keeps that answer for its
pod's lifetime.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from deviceplugin import metrics
from deviceplugin.cdi.rules import BINDINGS, BindingName, Choice, Probe, choose, late_needs_edits
from gpushare.objects.model import Node, NodeSystemInfo
from gpushare.process import daemon_thread

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 60.0


class Binding:
    """``probe`` blocks and is called in a thread; ``has_edits`` is whether NVIDIA's CDI files name
    the node's GPUs.

    ``last`` is the node's binding before this program started; it stays until the Node is read and
    the probe has answered. ``last_needed_edits``: containers got GPUs by NVIDIA's CDI edits then,
    which is the only way with late binding on CRI-O; until the Node is read it may be CRI-O.
    """

    def __init__(
        self,
        *,
        forced: BindingName | None,
        needs_cdi: bool,
        last: BindingName | None,
        last_needed_edits: bool = False,
        probe: Callable[[], Probe],
        has_edits: Callable[[], bool] = lambda: False,
        probe_seconds: float = PROBE_SECONDS,
    ) -> None:
        self._forced = forced
        self._has_edits = has_edits
        self._needs_cdi = needs_cdi
        self._last = last
        self._last_needed_edits = last_needed_edits
        self._probe = probe
        self._probe_seconds = probe_seconds
        self._node: NodeSystemInfo | None = None
        self._wake = asyncio.Event()
        self._changed: Callable[[BindingName], None] = lambda _: None
        self.now = self._chosen(None, Probe.UNKNOWN)
        self._show()

    @property
    def why_not(self) -> str:
        """Why containers cannot get any GPU; empty where they can."""
        if not self._needs_cdi or self.now.binding == "late":
            return ""
        return (
            f"--inject=cdi needs a runtime that resolves CDI names, and early binding is in force: "
            f"{self.now.why}; set --inject=runtime on this node"
        )

    @property
    def is_settled(self) -> bool:
        """Whether the binding is chosen with knowledge of the Node's runtime, or forced."""
        return self._forced is not None or self._node is not None

    @property
    def needs_edits(self) -> bool:
        """Whether late binding gives a container its GPU only by NVIDIA's own CDI edits."""
        return self._last_needed_edits if self._node is None else late_needs_edits(self._node)

    def on_change(self, changed: Callable[[BindingName], None]) -> None:
        """Call ``changed`` at each change from now on."""
        self._changed = changed

    def node_seen(self, node: Node) -> None:
        info = node.status.node_info
        if info is not None and info != self._node:
            self._node = info
            self._wake.set()

    async def run(self) -> None:
        """Choose again at each change of the Node's runtime; while uncertain, every minute."""
        while self._forced is None:
            self._wake.clear()
            probe = await daemon_thread.call(self._probe, "probe")
            self._take(self._chosen(self._node, probe))
            seconds = self._probe_seconds if self.now.may_change or self.needs_edits else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    def _chosen(self, node: NodeSystemInfo | None, probe: Probe) -> Choice:
        return choose(
            node,
            probe,
            forced=self._forced,
            needs_cdi=self._needs_cdi,
            has_edits=node is not None and self._has_edits(),
            last=self._last,
        )

    def _take(self, choice: Choice) -> None:
        if choice == self.now:
            return
        is_new = choice.binding != self.now.binding
        self.now = choice
        self._last = choice.binding
        self._show()
        if is_new:
            self._changed(choice.binding)

    def _show(self) -> None:
        log.info("binding", extra={"binding": self.now.binding, "why": self.now.why})
        for name in BINDINGS:
            metrics.BINDING.labels(name).set(name == self.now.binding)
