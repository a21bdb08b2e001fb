"""``gpushare cordon-card`` and ``uncordon-card``: which cards of a node take nothing new."""

from collections.abc import Iterable, Mapping, Sequence
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
from gpushare.kube.lists import list_all
from gpushare.kube.paths import pods
from gpushare.objects.model import Node, Pod
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.reach.rights import LIST_PODS, Right, named
from gpusharectl.terminal.printable import printable

TRIES: Final = 20  # the kubelet and the plugin write the same Node


@dataclass(frozen=True, slots=True)
class Change:
    """What is written on a node, and what that changes; ``dropped`` are names of no card there."""

    annotations: Mapping[str, str | None]
    changed: tuple[Card, ...]
    unchanged: tuple[Card, ...]
    dropped: tuple[str, ...]

    def needed(self, node: Node) -> bool:
        return any(node.annotations.get(key) != value for key, value in self.annotations.items())


def cards_of(node: Node) -> Inventory:
    """The node's cards, each marked if it is cordoned by a value that names cards of the node.

    Raises SettingsError where the node states none.
    """
    try:
        found = inventory.of_node(node, unit_mib=1)
    except RecordError as err:
        raise SettingsError(f"node {node.name}: {err}; see `gpushare doctor`") from err
    if found is None:
        raise SettingsError(
            f"node {node.name} shares no card: it has no inventory; see `gpushare doctor`"
        )
    return found


def choose(cards: Sequence[Card], names: Sequence[str]) -> tuple[Card, ...]:
    """The cards that ``names`` mean: indexes, UUIDs, or beginnings of one UUID each.

    Raises SettingsError that names the cards that there are.
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
            many = "no card" if not found else f"the beginning of {len(found)} cards"
            raise SettingsError(f"{name!r} is {many} of the node; its cards are {there}")
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
    """What to write so that ``chosen`` take nothing new, or take pods again.

    Raises SettingsError where the present value names cards that the node does not have: another
    administrator may have meant one that is there. ``replaces`` drops those names.
    """
    present = placement_policy.parse_names(node.annotations.get(ANNOTATION_CORDONED_CARDS, ""))
    unknown = tuple(sorted(present - {card.uuid for card in found.cards}))
    if unknown and not replaces:
        raise SettingsError(
            f"annotation {ANNOTATION_CORDONED_CARDS} of node {node.name} names "
            f"{', '.join(map(repr, unknown))}, no card of the node, so the node takes nothing new: "
            f"see which card was meant, then say --replace to drop these names"
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
    """A line for each pod that holds a share of one of ``cards``, or one that cannot be told."""
    wanted = {card.uuid: card.index for card in cards}
    lines = []
    for pod in sorted(on_node, key=lambda each: each.key):
        share = share_of(pod, found)
        if share is None:
            continue
        held = [str(wanted[uuid]) for uuid in share.cards if uuid in wanted]
        if held:
            lines.append(f"{pod.key}: {share.units} units of card {', '.join(held)}")
        elif share.is_unplaced:
            lines.append(f"{pod.key}: {share.units} units of a card that cannot be told")
    return lines


_NODE = click.argument("node")
_CARDS = click.argument("cards", nargs=-1, metavar="[CARD]...")
_ALL = click.option("--all", "is_all", is_flag=True, help="Every card of the node.")
_REPLACE = click.option(
    "--replace", is_flag=True, help="Drop names that are no card of the node from the present list."
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")


@click.command("cordon-card")
@_NODE
@_CARDS
@_ALL
@click.option("--reason", default="", help="Why, for the next one who looks at the node.")
@_REPLACE
@_DRY_RUN
@asks_a_cluster
async def cordon_card(target: Target, reason: str, **given: Any) -> None:
    """Let cards of a node take nothing new.

    What runs there goes on. CARD is an index, a UUID, or the beginning of one. Needs the rights to
    get and patch nodes.
    """
    await _run(target, is_cordon=True, reason=reason, **given)


@click.command("uncordon-card")
@_NODE
@_CARDS
@_ALL
@_REPLACE
@_DRY_RUN
@asks_a_cluster
async def uncordon_card(target: Target, **given: Any) -> None:
    """Let cards of a node take pods again.

    CARD is an index, a UUID, or the beginning of one. Needs the rights to get and patch nodes.
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
        raise click.UsageError("name cards, or say --all")
    async with target.connect() as kube:
        tries = 0
        while True:
            seen = await _node(kube, node)
            found = cards_of(seen)
            chosen = found.cards if is_all else choose(found.cards, cards)
            change = plan(seen, found, chosen, is_cordon=is_cordon, reason=reason, replaces=replace)
            if dry_run or not change.needed(seen):
                break
            tries += 1
            try:
                await write(kube, seen, change)
                break
            except Conflict:
                if tries == TRIES:
                    raise
        _tell(node, change, is_cordon=is_cordon, is_dry=dry_run)
        if is_cordon:
            await _tell_holders(kube, node, found, chosen)


async def write(kube: Kube, seen: Node, change: Change) -> None:
    """Write the change on the node as it was seen; Conflict if anybody has written it since."""
    version = seen.metadata.resource_version
    metadata = {"resourceVersion": version, "annotations": dict(change.annotations)}
    try:
        await kube.patch_node(seen.name, {"metadata": metadata}, status=False)
    except Conflict:
        raise
    except ApiError as err:
        raise named(err, Right("patch", "nodes", is_namespaced=False)) from err


async def _node(kube: Kube, name: str) -> Node:
    try:
        return await kube.get_node(name)
    except NotFound as err:
        raise SettingsError(f"there is no node {name!r}: `kubectl get nodes` names them") from err
    except ApiError as err:
        raise named(err, Right("get", "nodes", is_namespaced=False)) from err


def _tell(node: str, change: Change, *, is_cordon: bool, is_dry: bool) -> None:
    done = "would be" if is_dry else "is"
    state = "cordoned" if is_cordon else "uncordoned"
    for card in change.changed:
        click.echo(printable(f"{node}: card {card.index} ({card.uuid}) {done} {state}"))
    for card in change.unchanged:
        was = "cordoned" if is_cordon else "not cordoned"
        click.echo(printable(f"{node}: card {card.index} ({card.uuid}) was {was} already"))
    for name in change.dropped:
        click.echo(f"{node}: {name!r}, no card of the node, {done} dropped from the list")


async def _tell_holders(kube: Kube, node: str, found: Inventory, cards: Iterable[Card]) -> None:
    try:
        on_node = await _pods_of(kube, node)
    except ApiError as err:
        text = f"Which pods still hold shares there is not known: {err}"
        click.echo(printable(text), err=True)
        return
    lines = holders(found, cards, on_node)
    if lines:
        click.echo("What runs there goes on. Still held:")
        for line in lines:
            click.echo(f"  {line}")
    else:
        click.echo("No pod holds a share there.")


async def _pods_of(kube: Kube, node: str) -> list[Pod]:
    try:
        return await list_all(kube, pods(field_selector=f"spec.nodeName={node}"), Pod)
    except ApiError as err:
        raise named(err, LIST_PODS) from err
