"""Read and write gpushare's annotations on pods: requests, decisions and shares (pure)."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from gpushare.cards import placement_policy
from gpushare.cards.model import (
    Card,
    ContainerKind,
    ContainerRequest,
    Inventory,
    Request,
    Share,
    effective_units,
)
from gpushare.contract import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_ASSIGN_TIME,
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARD_UNITS,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_INIT_ALLOCATION,
    ANNOTATION_POD_UNITS,
    ANNOTATION_RUNNING_ON,
    ENV_MEMORY_LIMITS,
    ENV_VISIBLE_DEVICES,
    HIDES_CARDS,
    LABEL_CARD_COUNT,
    LATE_BINDING,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import QuantityError, RecordError, RequestError
from gpushare.objects.many_containers import TOO_MANY, has_too_many
from gpushare.objects.model import (
    TERMINAL_PHASES,
    Container,
    ContainerStatus,
    Pod,
    kind_opened_by,
    names_memory,
)
from gpushare.objects.quantity import MOST_NODE_UNITS, parse_units

MAX_CARDS: Final = 64
BYTES_BY_MISTAKE: Final = 2**20  # no card has a TiB, so ``1Mi`` or more units are a mistake

PLACE_KEYS: Final = (ANNOTATION_INDEX, ANNOTATION_CARDS)  # the annotations that place a bound pod

_decode_running_on = msgspec.json.Decoder(dict[str, dict[str, int]]).decode


def asks_for_share(pod: Pod) -> bool:
    """Return whether the pod names one of our resources, with any amount."""
    return any(names_memory(each) or RESOURCE_COUNT in each.limits for each in pod.all_containers)


def has_same_amounts(pod: Pod, other: Pod) -> bool:
    one, two = pod.spec, other.spec
    return one.containers == two.containers and one.init_containers == two.init_containers


def asks_the_same(pod: Pod, other: Pod) -> bool:
    """Return whether ``request_of`` reads the same from both pods."""
    one, two = pod.metadata, other.metadata
    return (
        has_same_amounts(pod, other)
        and one.annotations == two.annotations
        and one.labels == two.labels
        and pod.spec.runtime_class_name == other.spec.runtime_class_name
        and pod.excess == other.excess
    )


def share_statuses(pod: Pod) -> tuple[ContainerStatus, ...]:
    """Return the kubelet's statuses of the containers that have devices of ours.

    Those are the containers that request more than nothing, or an unreadable amount.
    """
    names = {each.name for each in pod.all_containers if _counted(each)}
    return tuple(status for status in pod.statuses if status.name in names)


def request_of(pod: Pod) -> Request:
    """Return what the pod requests, with its placement policy.

    Raises RequestError with a text for the user as ``amounts_of`` and ``check_annotations`` do, for
    an invalid placement policy, and for a pod with more than is read of it.
    """
    if pod.excess:
        raise RequestError(f"pod is too large: {pod.excess}")
    check_annotations(pod)
    amounts, policy = amounts_of(pod), placement_policy.read(pod.annotations)
    return amounts if policy is placement_policy.DEFAULT_POLICY else replace(amounts, policy=policy)


def amounts_of(pod: Pod) -> Request:
    """Return what the pod requests, from only its limits and its label.

    Raises RequestError, with a text for the user, for an invalid amount, a request of nothing,
    ``gpu-count`` as a resource, an amount that no node can have, and one that cannot be split
    equally.
    """
    containers = containers_of(pod)
    if any(
        RESOURCE_COUNT in container.limits or RESOURCE_COUNT in container.requests
        for container in pod.all_containers
    ):
        raise RequestError(
            f"{RESOURCE_COUNT} cannot be requested as a resource: request {RESOURCE_MEMORY}, and "
            f"to split the amount over several GPUs set the pod label {LABEL_CARD_COUNT}"
        )
    if not any(container.units for container in containers):
        raise RequestError(f"{RESOURCE_MEMORY} is 0 in every container: request at least one unit")
    count = _card_count(pod)
    for container in containers:
        if container.units % count:
            raise RequestError(
                f"container {container.name} requests {container.units} units, which cannot be "
                f"split in {count} equal parts as label {LABEL_CARD_COUNT} wants: write "
                f"{-(-container.units // count) * count}"
            )
    found = Request(containers, count, runtime_class=pod.spec.runtime_class_name or "")
    if found.units > MOST_NODE_UNITS:
        raise RequestError(
            f"pod requests {found.units} units of {RESOURCE_MEMORY}: no node has more than "
            f"{MOST_NODE_UNITS}"
        )
    return found


def containers_of(pod: Pod) -> tuple[ContainerRequest, ...]:
    """Return each container's request, init containers first: the order of Allocate calls.

    Raises RequestError if an amount cannot be read, or there are too many.
    """
    if has_too_many(pod):
        raise RequestError(f"pod is too large: {TOO_MANY}")
    return tuple([_requested(container, kind) for container, kind in _by_kind(pod)])


def _by_kind(pod: Pod) -> Iterator[tuple[Container, ContainerKind]]:
    for each in pod.init_containers:
        yield each, ContainerKind.SIDECAR if each.is_sidecar else ContainerKind.INIT
    for each in pod.containers:
        yield each, ContainerKind.APP


def _requested(container: Container, kind: ContainerKind) -> ContainerRequest:
    return ContainerRequest(
        container.name,
        _units(container),
        kind,
        _sets(container, (ENV_VISIBLE_DEVICES,)),
        _hides_cards(container),
        _sets(container, ENV_MEMORY_LIMITS),
    )


def units_of(pod: Pod) -> int:
    """Return what the containers of a bound pod ask for in all, by their limits.

    It counts whatever this program thinks of it: an amount that cannot be read, and any that no
    node has, counts as MOST_NODE_UNITS.
    """
    found = [ContainerRequest("", _counted(each), kind) for each, kind in _by_kind(pod)]
    return min(MOST_NODE_UNITS, effective_units(found))


def share_of(pod: Pod, inventory: Inventory | None, units: int | None = None) -> Share | None:
    """Return the share of a bound pod; None if it has none (unbound, ended, requests nothing).

    ``units`` is the result of ``units_of`` for the pod, if known. The cards are read from the
    decision's UUIDs. Aliyun gpushare's extender writes none: its IDX is the driver's minor number,
    and ``running-on`` with as many cards takes precedence. If no card can be read, or the node does
    not have one of them, the share is unplaced, and has at most the units of the whole node: the
    kubelet gives no pod more.
    """
    if not pod.spec.node_name or pod.status.phase in TERMINAL_PHASES:
        return None
    if units is None:
        if not asks_for_share(pod):
            return None
        units = units_of(pod)
    if not units:
        return None
    try:
        cards = _cards_of(pod, inventory)
    except RecordError as err:
        if inventory is not None:
            units = min(units, sum([card.units for card in inventory.cards]))
        return _share(pod, units, (), str(err), starts_nowhere=_starts_nowhere(pod, inventory))
    return _share(pod, -(-units // len(cards)), cards)


def _starts_nowhere(pod: Pod, inventory: Inventory | None) -> bool:
    """Return whether no container of the bound pod can have a card of this node, now or later.

    With late binding the device plugin decides at the start of each container, and refuses every
    start of a pod without a decision. The kubelet asks it each time, so such a pod has no card, and
    no card need keep room for it: the kubelet counts the pod's units in the node's sum, and gives
    other pods any other devices, because the decision and not the device determines the card.

    A pod may have a card all the same, and counts on every one, if the node had another binding or
    another plugin when it started (a container with devices has run, or ``running-on`` says so), or
    if the plugin may have seen a decision that does not count here (``was_edited``).
    """
    if inventory is None or inventory.binding != LATE_BINDING or pod.was_edited:
        return False
    if any(pod.annotations.get(key) for key in (*PLACE_KEYS, ANNOTATION_RUNNING_ON)):
        return False
    return not any(status.has_run for status in share_statuses(pod))


def decision_annotations(
    request: Request, cards: Sequence[Card], *, is_legacy: bool, assume_time_ns: int
) -> dict[str, str]:
    """Return the annotations of a Binding, with every key of the contract.

    ``cards`` are in index order. The device plugin's keys are emptied, because values that a user
    preset on the pod must not count.
    """
    indexes = [card.minor if is_legacy else card.index for card in cards]
    apps = [c for c in request.containers if c.kind is ContainerKind.APP]
    inits = [c for c in request.containers if c.kind is not ContainerKind.APP]
    return {
        ANNOTATION_INDEX: ",".join(map(str, indexes)),
        ANNOTATION_POD_UNITS: str(request.units),
        ANNOTATION_CARD_UNITS: ",".join(str(card.units) for card in cards),
        ANNOTATION_ASSUME_TIME: str(assume_time_ns),
        ANNOTATION_ASSIGNED: "false",
        ANNOTATION_ALLOCATION: _allocation(apps, indexes),
        ANNOTATION_INIT_ALLOCATION: _allocation(inits, indexes),
        ANNOTATION_CARDS: "" if is_legacy else ",".join(card.uuid for card in cards),
        ANNOTATION_ASSIGN_TIME: "",
        ANNOTATION_RUNNING_ON: "",
    }


def encode_running_on(request: Request, cards: Sequence[str]) -> str:
    return msgspec.json.encode(
        {
            container.name: dict.fromkeys(cards, container.units // len(cards))
            for container in request.containers
            if container.units
        }
    ).decode()


def _share(
    pod: Pod, units: int, cards: tuple[str, ...], why: str = "", *, starts_nowhere: bool = False
) -> Share:
    meta, node = pod.metadata, pod.spec.node_name or ""
    return Share(meta.uid, meta.namespace, meta.name, node, units, cards, why, starts_nowhere)


def check_annotations(pod: Pod) -> None:
    """Raise RequestError for an annotation that would add cards to the pod's containers.

    CRI-O copies a pod's annotations to each container, where NVIDIA's runtime prefers them to the
    environment: those of ``cdi.k8s.io``, or of ``nvidia.cdi.k8s.io`` as the GPU Operator sets it
    up. NVIDIA's NRI plugin reads those of ``nvidia.cdi.k8s.io``.
    """
    for key, value in pod.annotations.items():
        if kind_opened_by(key, value):
            raise RequestError(
                f"annotation {key[:120]} names a CDI device of GPUs that were not assigned to "
                f"the pod: remove the annotation"
            )


def _amount(container: Container) -> str | int | None:
    return container.limits.get(RESOURCE_MEMORY, container.requests.get(RESOURCE_MEMORY))


def _units(container: Container) -> int:
    amount = _amount(container)
    if amount is None:
        return 0
    try:
        units = parse_units(amount)
    except QuantityError as err:
        raise RequestError(f"container {container.name} requests {RESOURCE_MEMORY}: {err}") from err
    if units >= BYTES_BY_MISTAKE and str(amount)[-1].isalpha():
        raise RequestError(
            f"container {container.name} requests {RESOURCE_MEMORY} {amount}, which is {units} "
            f"units: it is a number of units, not of bytes. With units of 1 GiB, write "
            f"{-(-units // 2**30)}"
        )
    return units


def _counted(container: Container) -> int:
    """Return the units that count for a container of a bound pod, as ``units_of`` does."""
    amount = _amount(container)
    if amount is None:
        return 0
    try:
        return min(MOST_NODE_UNITS, parse_units(amount))
    except QuantityError:
        return MOST_NODE_UNITS


def _sets(container: Container, names: Sequence[str]) -> bool:
    return names_memory(container) and any(
        variable.name in names for variable in container.env or ()
    )


def _hides_cards(container: Container) -> bool:
    """Return whether the container hides the cards; the kubelet uses the last of equal names."""
    values = [each.value for each in container.env or () if each.name == ENV_VISIBLE_DEVICES]
    return bool(values) and values[-1] in HIDES_CARDS


def _card_count(pod: Pod) -> int:
    text = pod.labels.get(LABEL_CARD_COUNT)
    if text is None:
        return 1
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= 63 else 0  # noqa: PLR2004 - a label's longest
    if not 1 <= count <= MAX_CARDS:
        raise RequestError(
            f"label {LABEL_CARD_COUNT} is {text[:63]!r}: write a number of GPUs from 1 to "
            f"{MAX_CARDS}"
        )
    return count


def _allocation(containers: Sequence[ContainerRequest], indexes: Sequence[int]) -> str:
    """Return Aliyun gpushare's JSON: container's position to card index to units."""
    return msgspec.json.encode(
        {
            str(place): {str(index): container.units // len(indexes) for index in indexes}
            for place, container in enumerate(containers)
            if container.units
        }
    ).decode()


def _cards_of(pod: Pod, inventory: Inventory | None) -> tuple[str, ...]:
    uuids = _decided_uuids(pod, inventory)
    if not pod.annotations.get(ANNOTATION_CARDS):
        # Decided by the driver's minor number, which a reboot may change.
        running_on = running_on_cards(pod)
        uuids = running_on if len(running_on) == len(uuids) else uuids
    if inventory is None:
        return uuids
    cards: list[str] = []
    for uuid in uuids:
        card = inventory.by_uuid(uuid)
        if card is None:
            raise RecordError(f"annotations name GPU {uuid[:63]!r}, which is not in the node")
        cards.append(card.uuid)  # the same text, kept once for all pods of the card
    return tuple(cards)


def running_on_cards(pod: Pod) -> tuple[str, ...]:
    """Return the cards in ``running-on``; none if it is absent or unreadable."""
    written = (pod.metadata.annotations or {}).get(ANNOTATION_RUNNING_ON)
    if not written:
        return ()
    try:
        containers = _decode_running_on(written)
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(sorted({uuid for amounts in containers.values() for uuid in amounts}))


def _decided_uuids(pod: Pod, inventory: Inventory | None) -> tuple[str, ...]:
    written = pod.annotations.get(ANNOTATION_CARDS)
    if written:
        uuids = tuple(uuid.strip() for uuid in written.split(","))
        if not all(uuids) or not 1 <= len(set(uuids)) == len(uuids) <= MAX_CARDS:
            raise RecordError(f"annotation {ANNOTATION_CARDS} cannot be read: {written[:200]!r}")
        return uuids
    index = pod.annotations.get(ANNOTATION_INDEX)
    if index is None:
        raise RecordError(f"no decision on the pod: annotation {ANNOTATION_INDEX} is missing")
    if inventory is None:
        raise RecordError(f"annotation {ANNOTATION_INDEX} names a GPU of a node without inventory")
    parts = index.split(",")
    uuids = tuple(_uuid_of_minor(part.strip(), inventory) for part in parts[: MAX_CARDS + 1])
    if not 1 <= len(set(uuids)) == len(uuids) <= MAX_CARDS:
        raise RecordError(f"annotation {ANNOTATION_INDEX} names a GPU twice: {index[:200]!r}")
    return uuids


def _uuid_of_minor(text: str, inventory: Inventory) -> str:
    card = None
    if text.isascii() and text.isdigit() and len(text) <= 4:  # noqa: PLR2004 - no larger minors
        card = inventory.by_minor(int(text))
    if card is None:
        raise RecordError(f"annotation {ANNOTATION_INDEX} is {text[:63]!r}, which is no GPU here")
    return card.uuid
