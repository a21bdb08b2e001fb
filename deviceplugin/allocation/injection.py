"""How containers get access to their GPUs: NVIDIA's own CDI edits, or NVIDIA's runtime.

CDI needs late binding and a specification that names the GPUs; it gives access to these GPUs and no
others under every low-level runtime. NVIDIA's runtime gives access to what the container's
environment names, so a pod must run under it, and the pod's other containers must not ask it for
GPUs.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from deviceplugin import metrics
from deviceplugin.allocation.rules import (
    INJECTIONS,
    Grant,
    Injection,
    check_own_limits,
    check_own_variable,
)
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi.binding import Binding
from deviceplugin.cdi.no_edits import NoEdits
from deviceplugin.cdi.nvidia_edits import NvidiaSpecs, with_hook, without_hook
from deviceplugin.cdi.spec_files import Edits
from deviceplugin.errors import Reason, Refused
from deviceplugin.settings import InjectFlag
from gpushare.cards.model import Card, Inventory
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    BY_CDI,
    BY_RUNTIME,
    BY_RUNTIME_CDI,
    CLASS_NVIDIA_CDI,
    CLASS_NVIDIA_LEGACY,
    EARLY_BINDING,
    NO_CARD,
)
from gpushare.placement.card_choice import why_not_injected
from gpushare.placement.reasons import EXPOSES_CARDS

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5.0


class Injections:
    """``own_variable`` is NVIDIA_VISIBLE_DEVICES of this program.

    ``runtime_classes`` are the RuntimeClasses of NVIDIA's runtime, with an empty name where it is
    the default runtime. ``binding`` is read at each call.

    The runtime has started this very program, so ``own_variable`` shows which form of the variable
    it reads. In the modes that use CDI it leaves ``void`` there (pkg/nvcdi/common-nvml.go) and
    resolves names of its own kind; a bare UUID is resolved only if the configured kind has it,
    which the GPU Operator's does not. In mode legacy the variable is unchanged, and only bare UUIDs
    are known. Tried with nvidia-container-toolkit 1.17.8 and 1.20.1. A wrong form fails the
    container.
    """

    def __init__(
        self,
        flag: InjectFlag,
        *,
        specs: NvidiaSpecs | NoEdits,
        own_variable: str,
        runtime_classes: frozenset[str],
        binding: Binding,
    ) -> None:
        self._flag = flag
        self._specs = specs
        self._runtime_classes = runtime_classes
        self._binding = binding
        self._form: Injection = BY_RUNTIME_CDI if own_variable == NO_CARD else BY_RUNTIME
        if flag in {BY_RUNTIME, BY_RUNTIME_CDI}:
            self._form = BY_RUNTIME if flag == BY_RUNTIME else BY_RUNTIME_CDI
        self._why_not_cdi = ""

    @property
    def why_not(self) -> str:
        """Why containers can get no GPU with --inject=cdi; empty where they can."""
        return self._why_not_cdi if self._flag == BY_CDI else ""

    def by_runtime(self, grant: Grant) -> Injection:
        """Return the form that the NVIDIA runtime of this pod's RuntimeClass reads."""
        if grant.request.runtime_class == CLASS_NVIDIA_LEGACY:
            return BY_RUNTIME
        return BY_RUNTIME_CDI if grant.request.runtime_class == CLASS_NVIDIA_CDI else self._form

    def at_start(
        self,
        grant: Grant,
        *,
        has_share: bool,
        is_late: bool,
        was_let_start: bool,
        limits: bool,
    ) -> tuple[Injection, Edits]:
        """Return what the CDI file of a starting container contains, apart from its variables.

        ``has_share``: Allocate answered with a CDI name; ``is_late``: with nothing else, so the
        runtime certainly resolves it. ``was_let_start``: a container of the pod was let start
        before, so those that ask for no GPU have run already. ``limits``: NVIDIA's hook must limit
        the container's memory. Raises Refused where the container would see no GPU, or other
        containers of the pod would see all.
        """
        check_own_limits(grant)
        by_runtime = self.by_runtime(grant)
        injection, edits, why = by_runtime, Edits(), ""
        if has_share and self._flag in {"auto", BY_CDI}:
            try:
                injection, edits = BY_CDI, self._specs.edits(grant.cards)
            except Refused as err:
                if self._flag == BY_CDI:
                    raise
                why = str(err)
        if self._binding.needs_edits:
            if has_share and injection != BY_CDI:
                raise Refused(
                    f"pod {grant.pod.key}: CRI-O passes no variable of a CDI file to NVIDIA's "
                    f"runtime, and so no GPU: set --binding=early or --inject=cdi"
                    f"{f'; {why}' if why else ''}"
                )
            if grant.request.runtime_class in self._runtime_classes:
                check_own_variable(grant)
        self._check(grant, injection if is_late else by_runtime, has_run=was_let_start, why=why)
        if not has_share or not limits:
            return injection, without_hook(edits)
        return injection, with_hook(edits, self._specs.limit_hook(grant.cards))

    def _why_no_limit(self) -> str | None:
        """Return why NVIDIA's hook limits no container's memory; empty if it does.

        None where that is not known yet.
        """
        if not self._binding.is_settled:
            return None
        if self._binding.now.binding == EARLY_BINDING:
            return "with early binding the plugin cannot add NVIDIA's hook to containers"
        return self._specs.why_no_limit_hook()

    def check_admission(self, grant: Grant) -> None:
        """Refuse a pod of which containers that ask for no GPU would see all of them.

        These start without another call of this program, so the whole pod must fail. A pod that
        sets a memory limit of its own fails as well: nothing could mend it.
        """
        check_own_limits(grant)
        self._check(grant, BY_CDI)

    def first(self, last: str) -> Injection:
        """Return the inventory's value until the GPUs are known; ``last`` is the value before."""
        if self._flag == BY_CDI or (self._flag == "auto" and last == BY_CDI):
            return BY_CDI
        return self._form

    def has_edits(self, inventory: Inventory | None) -> bool:
        """Whether NVIDIA's CDI files may be used, and name every healthy GPU."""
        healthy = _healthy(inventory)
        return self._flag in {"auto", BY_CDI} and bool(healthy) and self._names(healthy)

    def _names(self, cards: Sequence[Card]) -> bool:
        why = ""
        try:
            for card in cards:
                self._specs.edits([card])
        except Refused as err:
            why = str(err)
        if why != self._why_not_cdi:
            self._why_not_cdi = why
            log.info("NVIDIA's CDI files", extra={"name all GPUs": not why, "why": why})
        return not why

    async def run(self, cards: NodeCards) -> None:
        """Keep injection and limits in the node's inventory current, until cancelled."""
        version = -1
        while True:
            if (why := self._why_no_limit()) is not None:
                cards.set_why_no_limit(why)
            if healthy := _healthy(cards.inventory):
                now = self._now(healthy)
                cards.set_injection(now)
                for name in INJECTIONS:
                    metrics.INJECTION.labels(name).set(name == now)
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    version = await cards.changed(version)
            except TimeoutError:
                continue  # NVIDIA's files may have changed, or the binding

    def _now(self, cards: Sequence[Card]) -> Injection:
        """Return what gives the containers of new pods access to these GPUs."""
        if self._flag == BY_CDI:
            self._names(cards)  # for why_not
            return BY_CDI
        is_possible = self._flag == "auto" and self._binding.now.binding == "late"
        return BY_CDI if is_possible and self._names(cards) else self._form

    def _check(
        self, grant: Grant, injection: Injection, *, has_run: bool = False, why: str = ""
    ) -> None:
        found = why_not_injected(injection, self._runtime_classes, grant.request)
        if found is None:
            return
        has_run |= grant.pod.annotations.get(ANNOTATION_ASSIGNED) == "true"
        if found is EXPOSES_CARDS and has_run:
            return
        raise Refused(
            f"pod {grant.pod.key}: {found.text}{f' ({why})' if why else ''}",
            pod=grant.pod,
            reason=Reason.EXPOSES_CARDS if found is EXPOSES_CARDS else Reason.NEEDS_RUNTIME,
        )


def _healthy(inventory: Inventory | None) -> list[Card]:
    return [card for card in inventory.cards if card.is_healthy] if inventory is not None else []
