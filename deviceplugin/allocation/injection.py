"""What opens a container's cards to it: NVIDIA's own CDI edits, or NVIDIA's runtime.

CDI needs late binding and a specification that names the cards; it opens these cards and no others
under every low-level runtime. NVIDIA's runtime opens what the container's environment names, so a
pod must run under it, and its other containers must not ask it for cards.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Literal

from deviceplugin import metrics
from deviceplugin.allocation.grant import INJECTIONS, Grant, Injection, check_own_variable
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi.binding import Binding
from deviceplugin.cdi.nvidia_edits import NvidiaSpecs
from deviceplugin.cdi.spec_files import Edits
from deviceplugin.errors import Reason, Refused
from gpushare.cards.model import Card, Inventory
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    BY_CDI,
    BY_RUNTIME,
    BY_RUNTIME_CDI,
    CLASS_NVIDIA_CDI,
    CLASS_NVIDIA_LEGACY,
    NO_CARD,
)
from gpushare.placement.card_choice import why_not_injected
from gpushare.placement.reasons import EXPOSES_CARDS

log = logging.getLogger(__name__)

InjectFlag = Literal["auto", "cdi", "runtime", "runtime-cdi"]

LOOK_SECONDS: Final = 5.0


def told_by(own_variable: str) -> Injection:
    """The form of NVIDIA_VISIBLE_DEVICES that this node's NVIDIA runtime reads.

    The runtime has started this very program, with ``own_variable`` in its environment. In the
    modes that use CDI it leaves ``void`` there (pkg/nvcdi/common-nvml.go) and resolves names of its
    own kind; a bare UUID is resolved only if the configured kind has it, which the GPU Operator's
    has not. In mode legacy the variable stays as it was, and only bare UUIDs are known. Tried with
    nvidia-container-toolkit 1.17.8 and 1.20.1. A form that is wrong fails the container.
    """
    return BY_RUNTIME_CDI if own_variable == NO_CARD else BY_RUNTIME


class Injections:
    """``own_variable`` is NVIDIA_VISIBLE_DEVICES of this program.

    ``runtime_classes`` are the RuntimeClasses of NVIDIA's runtime, with an empty name where it is
    the default runtime. ``binding`` is asked at each call.
    """

    def __init__(
        self,
        flag: InjectFlag,
        *,
        specs: NvidiaSpecs,
        own_variable: str,
        runtime_classes: frozenset[str],
        binding: Binding,
    ) -> None:
        self._flag = flag
        self._specs = specs
        self._runtime_classes = runtime_classes
        self._binding = binding
        self._form: Injection = told_by(own_variable)
        if flag in {BY_RUNTIME, BY_RUNTIME_CDI}:
            self._form = BY_RUNTIME if flag == BY_RUNTIME else BY_RUNTIME_CDI
        self._why_not_cdi = ""

    @property
    def why_not(self) -> str:
        """Why nothing can be given to containers though that was set; empty where it can."""
        return self._why_not_cdi if self._flag == BY_CDI else ""

    def by_runtime(self, grant: Grant) -> Injection:
        """The form that the NVIDIA runtime of this pod's RuntimeClass reads."""
        if grant.request.runtime_class == CLASS_NVIDIA_LEGACY:
            return BY_RUNTIME
        return BY_RUNTIME_CDI if grant.request.runtime_class == CLASS_NVIDIA_CDI else self._form

    def at_start(
        self, grant: Grant, *, has_share: bool, is_late: bool, was_let_start: bool
    ) -> tuple[Injection, Edits]:
        """What the CDI file of a container that starts now says, beside its variables.

        ``has_share``: Allocate has answered with a CDI name; ``is_late``: with nothing else, so
        the runtime resolves it for sure. ``was_let_start``: a container of the pod was let start
        before, so those that ask for no card have run already. Raises Refused where the container
        would see no card, or others of the pod would see all.
        """
        by_runtime = self.by_runtime(grant)
        injection, edits, why = by_runtime, Edits(), ""
        if has_share and self._flag in {"auto", BY_CDI}:
            try:
                injection, edits = BY_CDI, self._specs.edits(grant.cards)
            except Refused as err:
                if self._flag == BY_CDI:
                    raise
                why = str(err)
        if has_share and injection != BY_CDI and self._binding.needs_edits:
            raise Refused(
                f"pod {grant.pod.key}: CRI-O passes no variable of a CDI file on to NVIDIA's "
                f"runtime, and so no card: set --binding=early or --inject=cdi"
                f"{f'; {why}' if why else ''}"
            )
        if self._binding.needs_edits and grant.request.runtime_class in self._runtime_classes:
            check_own_variable(grant.request, grant.pod)
        self._check(grant, injection if is_late else by_runtime, has_run=was_let_start, why=why)
        return injection, edits

    def check_admission(self, grant: Grant) -> None:
        """Refused if containers of the pod that ask for no card would see all of them.

        These start without another word to this program, so the whole pod must fail.
        """
        self._check(grant, BY_CDI)

    def first(self, last: str) -> Injection:
        """What the inventory says until the cards are known; ``last`` is what it said before."""
        if self._flag == BY_CDI or (self._flag == "auto" and last == BY_CDI):
            return BY_CDI
        return self._form

    def has_edits(self, inventory: Inventory | None) -> bool:
        """Whether NVIDIA's CDI files may be used, and name every card that is well."""
        healthy = [card for card in inventory.cards if card.is_healthy] if inventory else []
        return self._flag in {"auto", BY_CDI} and bool(healthy) and self._names(healthy)

    def now(self, cards: Sequence[Card]) -> Injection:
        """What opens these cards to the containers of new pods."""
        if self._flag == BY_CDI:
            return BY_CDI
        is_free = self._flag == "auto" and self._binding.now.binding == "late"
        return BY_CDI if is_free and self._names(cards) else self._form

    def _names(self, cards: Sequence[Card]) -> bool:
        why = ""
        try:
            for card in cards:
                self._specs.edits([card])
        except Refused as err:
            why = str(err)
        if why != self._why_not_cdi:
            self._why_not_cdi = why
            log.info("NVIDIA's CDI files", extra={"name the cards": not why, "why": why})
        return not why

    async def run(self, cards: NodeCards) -> None:
        """Until cancelled: keep what the node's inventory says of this right."""
        version = -1
        while True:
            inventory = cards.inventory
            if inventory is not None and (healthy := [c for c in inventory.cards if c.is_healthy]):
                now = self.now(healthy)
                if self._flag == BY_CDI:
                    self._names(healthy)
                cards.set_injection(now)
                for name in INJECTIONS:
                    metrics.INJECTION.labels(name).set(name == now)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    version = await cards.changed(version)
            except TimeoutError:
                continue  # NVIDIA's files may have changed, or the binding

    def _check(
        self, grant: Grant, injection: Injection, *, has_run: bool = False, why: str = ""
    ) -> None:
        found = why_not_injected(injection, self._runtime_classes, grant.request)
        has_run |= grant.pod.annotations.get(ANNOTATION_ASSIGNED) == "true"
        if found is None or (found is EXPOSES_CARDS and has_run):
            return
        raise Refused(
            f"pod {grant.pod.key}: {found.text}{f' ({why})' if why else ''}",
            pod=grant.pod,
            reason=Reason.EXPOSES_CARDS if found is EXPOSES_CARDS else Reason.NEEDS_RUNTIME,
        )
