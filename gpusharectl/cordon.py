"""``gpushare cordon-gpu`` and ``uncordon-gpu``: close GPUs of a node for new pods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from gpushare.annotations import inventory
from gpushare.annotations.pod_annotations import share_of
from gpushare.cards import placement_policy
from gpushare.cards.model import Card, Inventory
from gpushare.contract import ANNOTATION_CORDON_REASONS, ANNOTATION_CORDONED_CARDS
from gpushare.errors import ApiError, Conflict, NotFound, RecordError, SettingsError
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, Pod
from gpushare.text.amounts import needed_gib
from gpusharectl.reach.extender import all_pods
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.reach.rights import Right, needing
from gpusharectl.terminal.say import say

TRIES: Final = 20  # the kubelet and the plugin write the same Node


@dataclass(frozen=True, slots=True)
class Change:
    """What is written on a node, and what that changes; ``dropped`` are unknown names."""

    annotations: Mapping[str, str | None]
    changed: tuple[Card, ...]
    unchanged: tuple[Card, ...]
    dropped: tuple[str, ...]

    def needed(self, node: Node) -> bool:
        return any(node.annotations.get(key) != value for key, value in self.annotations.items())


def cards_of(node: Node) -> Inventory:
    """Return the node's GPUs, marked if cordoned. SettingsError without an inventory."""
    try:
        found = inventory.of_node(node, unit_mib=1)
    except RecordError as err:
        raise SettingsError(f"node {node.name}: {err}; see `gpushare doctor`") from err
    if found is None:
        text = "shares no GPU: it has no inventory; see `gpushare doctor`"
        raise SettingsError(f"node {node.name} {text}")
    return found


def choose(cards: Sequence[Card], names: Sequence[str]) -> tuple[Card, ...]:
    """Return the GPUs of these indexes, UUIDs, or beginnings of one UUID.

    Raises SettingsError that lists the node's GPUs.
    """
    chosen: dict[str, Card] = {}
    for name in names:
        if name.isascii() and name.isdigit():
            found = [card for card in cards if str(card.index) == name]
        else:
            found = [card for card in cards if card.uuid == name]
            found = found or [card for card in cards if name and card.uuid.startswith(name)]
        if len(found) != 1:
            there = ", ".join(f"{card.index} ({card.uuid})" for card in cards) or "none"
            many = "no GPU" if not found else f"the beginning of {len(found)} GPUs"
            raise SettingsError(f"{name!r} is {many} of the node; its GPUs are {there}")
        chosen[found[0].uuid] = found[0]
    return tuple(chosen.values())


def plan(
    node: Node,
    found: Inventory,
    chosen: Iterable[Card],
    *,
    is_cordon: bool,
    reason: str = "",
    replaces: bool = False,
) -> Change:
    """Return what to write so that ``chosen`` take no new pods, or take pods again.

    Raises SettingsError if the present value names GPUs that the node does not have: another
    administrator may have meant one that it has. ``replaces`` drops those names.
    """
    present = placement_policy.parse_names(node.annotations.get(ANNOTATION_CORDONED_CARDS, ""))
    unknown = tuple(sorted(present - {card.uuid for card in found.cards}))
    if unknown and not replaces:
        raise SettingsError(
            f"annotation {ANNOTATION_CORDONED_CARDS} of node {node.name} names "
            f"{', '.join(map(repr, unknown))}, no GPU of the node, so the node takes no new pods: "
            f"find out which GPU was meant, then use --replace to drop these names"
        )
    wanted = {card.uuid for card in chosen}
    after = present | wanted if is_cordon else present - wanted
    cordoned = [card.uuid for card in found.cards if card.uuid in after]
    reasons = {uuid: text for uuid, text in inventory.cordon_reasons(node).items() if uuid in after}
    if is_cordon and reason:
        reasons |= dict.fromkeys(wanted, reason)
    kept = {uuid: reasons[uuid] for uuid in cordoned if uuid in reasons}
    cards = [card for card in found.cards if card.uuid in wanted]
    return Change(
        annotations={
            ANNOTATION_CORDONED_CARDS: ",".join(cordoned) or None,
            ANNOTATION_CORDON_REASONS: msgspec.json.encode(kept).decode() if kept else None,
        },
        changed=tuple(card for card in cards if (card.uuid in present) != is_cordon),
        unchanged=tuple(card for card in cards if (card.uuid in present) == is_cordon),
        dropped=unknown,
    )


def holders(found: Inventory, cards: Iterable[Card], on_node: Iterable[Pod]) -> list[str]:
    """Return a line for each pod that uses one of ``cards``, or an unknown GPU."""
    wanted = {card.uuid: card.index for card in cards}
    lines = []
    for pod in sorted(on_node, key=lambda each: each.key):
        share = share_of(pod, found)
        if share is None:
            continue
        held = [str(wanted[uuid]) for uuid in share.cards if uuid in wanted]
        # Aliyun gpushare does not state its unit.
        units = f"{share.units} units"
        amount = units if found.is_legacy else needed_gib(share.units * found.unit_mib)
        if held:
            lines.append(f"{pod.key}: {amount} of GPU {', '.join(held)}")
        elif share.is_unplaced:
            lines.append(f"{pod.key}: {amount} of an unknown GPU")
    return lines


_NODE = click.argument("node")
_CARDS = click.argument("cards", nargs=-1, metavar="[GPU]...")
_ALL = click.option("--all", "is_all", is_flag=True, help="All GPUs of the node.")
_REPLACE = click.option(
    "--replace",
    is_flag=True,
    help="Drop names that are not GPUs of the node from the present list.",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only print what would change.")


@click.command("cordon-gpu")
@_NODE
@_CARDS
@_ALL
@click.option("--reason", default="", help="Why; `gpushare inspect` shows it.")
@_REPLACE
@_DRY_RUN
@asks_a_cluster
async def cordon_gpu(target: Target, reason: str, **given: Any) -> None:
    """Close GPUs of a node for new pods.

    Pods that run there continue. GPU is an index, a UUID, or the beginning of one. Needs the right
    to get and patch nodes.
    """
    await _run(target, is_cordon=True, reason=reason, **given)


@click.command("uncordon-gpu")
@_NODE
@_CARDS
@_ALL
@_REPLACE
@_DRY_RUN
@asks_a_cluster
async def uncordon_gpu(target: Target, **given: Any) -> None:
    """Open GPUs of a node for pods again.

    GPU is an index, a UUID, or the beginning of one. Needs the right to get and patch nodes.
    """
    await _run(target, is_cordon=False, reason="", **given)


async def _run(
    target: Target,
    *,
    is_cordon: bool,
    reason: str,
    node: str,
    cards: tuple[str, ...],
    is_all: bool,
    replace: bool,
    dry_run: bool,
) -> None:
    if is_all == bool(cards):
        raise click.UsageError("name GPUs, or use --all")
    async with target.connect() as kube:
        found, chosen, change = await changed(
            kube,
            node,
            lambda there: there if is_all else choose(there, cards),
            is_cordon=is_cordon,
            reason=reason,
            replaces=replace,
            is_dry=dry_run,
        )
        _print_change(node, change, is_cordon=is_cordon, is_dry=dry_run)
        if is_cordon:
            await _print_pods(kube, node, found, chosen)


async def changed(
    kube: Kube,
    node: str,
    choose_of: Callable[[Sequence[Card]], Sequence[Card]],
    *,
    is_cordon: bool,
    reason: str = "",
    replaces: bool = False,
    is_dry: bool = False,
) -> tuple[Inventory, Sequence[Card], Change]:
    """Cordon or uncordon the GPUs that ``choose_of`` chooses from those of the node.

    Return the node's GPUs, the chosen ones, and what was changed. It is tried again if others
    change the node at the same time. SettingsError as in ``plan``.
    """
    tries = 0
    while True:
        seen = await _node(kube, node)
        found = cards_of(seen)
        chosen = choose_of(found.cards)
        change = plan(seen, found, chosen, is_cordon=is_cordon, reason=reason, replaces=replaces)
        if is_dry or not change.needed(seen):
            return found, chosen, change
        tries += 1
        try:
            await write(kube, seen, change)
        except Conflict:
            if tries == TRIES:
                raise
        else:
            return found, chosen, change


async def write(kube: Kube, seen: Node, change: Change) -> None:
    """Write the change on the node as it was read; Conflict if it has changed since."""
    version = seen.metadata.resource_version
    metadata = {"resourceVersion": version, "annotations": dict(change.annotations)}
    with needing(Right("patch", "nodes", is_namespaced=False)):
        await kube.patch_node(seen.name, {"metadata": metadata}, status=False)


async def _node(kube: Kube, name: str) -> Node:
    try:
        with needing(Right("get", "nodes", is_namespaced=False)):
            return await kube.get_node(name)
    except NotFound as err:
        raise SettingsError(f"node {name!r} not found: see `kubectl get nodes`") from err


def _print_change(node: str, change: Change, *, is_cordon: bool, is_dry: bool) -> None:
    done = "would be" if is_dry else "is"
    state = "cordoned" if is_cordon else "uncordoned"
    for card in change.changed:
        say(f"{node}: GPU {card.index} ({card.uuid}) {done} {state}")
    for card in change.unchanged:
        was = "cordoned" if is_cordon else "not cordoned"
        say(f"{node}: GPU {card.index} ({card.uuid}) was {was} already")
    for name in change.dropped:
        say(f"{node}: {name!r}, not a GPU of the node, {done} dropped from the list")


async def _print_pods(kube: Kube, node: str, found: Inventory, cards: Iterable[Card]) -> None:
    try:
        on_node = await all_pods(kube, node=node)
    except ApiError as err:
        say(f"Pods that still use them are not shown: {err}", err=True)
        return
    lines = holders(found, cards, on_node)
    say("Pods that continue to use them:" if lines else "No pod uses them.")
    for line in lines:
        say(f"  {line}")
