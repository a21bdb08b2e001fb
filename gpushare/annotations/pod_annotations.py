"""Read and write gpushare's annotations on pods: requests, decisions and shares (pure)."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from gpushare.cards import placement_policy
from gpushare.cards.model import Card, ContainerKind, ContainerRequest, Inventory, Request, Share
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
    ENV_VISIBLE_DEVICES,
    HIDES_CARDS,
    LABEL_CARD_COUNT,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import QuantityError, RecordError, RequestError
from gpushare.objects.model import (
    TERMINAL_PHASES,
    Container,
    ContainerStatus,
    Pod,
    kind_opened_by,
    names_memory,
)
from gpushare.objects.pod_reader import MOST_CONTAINERS
from gpushare.objects.quantity import MAX_UNITS, parse_units

MAX_CARDS: Final = 64
BYTES_BY_MISTAKE: Final = 2**20  # no card has a TiB, so ``1Mi`` or more units are a mistake

PLACE_KEYS: Final = (ANNOTATION_INDEX, ANNOTATION_CARDS)  # the annotations that place a bound pod

_decode_running_on = msgspec.json.Decoder(dict[str, dict[str, int]]).decode


def asks_for_share(pod: Pod) -> bool:
    """Return whether the pod names one of our resources, with any amount."""
    spec = pod.spec
    return any(
        names_memory(container) or RESOURCE_COUNT in container.limits
        for container in (*(spec.init_containers or ()), *(spec.containers or ()))
    )


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
    names = {each.name for each in (*pod.init_containers, *pod.containers) if _holds_devices(each)}
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
    ``gpu-count`` as a resource, and an amount that cannot be split equally.
    """
    containers = containers_of(pod)
    if any(
        RESOURCE_COUNT in container.limits or RESOURCE_COUNT in container.requests
        for container in (*pod.init_containers, *pod.containers)
    ):
        raise RequestError(
            f"{RESOURCE_COUNT} cannot be requested as a resource: request {RESOURCE_MEMORY}, and "
            f"to split the amount over several GPUs set the pod label {LABEL_CARD_COUNT}"
        )
    if not any(container.units for container in containers):
        raise RequestError(f"{RESOURCE_MEMORY} is 0 in every container: ask for at least one unit")
    count = _card_count(pod)
    for container in containers:
        if container.units % count:
            raise RequestError(
                f"container {container.name} asks for {container.units} units, which cannot be "
                f"split in {count} equal parts as label {LABEL_CARD_COUNT} wants"
            )
    return Request(containers, count, runtime_class=pod.spec.runtime_class_name or "")


def containers_of(pod: Pod) -> tuple[ContainerRequest, ...]:
    """Return each container's request, init containers first: the order of Allocate calls.

    Raises RequestError if an amount cannot be read, or there are too many.
    """
    if max(len(pod.init_containers), len(pod.containers)) > MOST_CONTAINERS:
        raise RequestError(f"pod has more than {MOST_CONTAINERS} containers: use fewer")
    inits = (
        _requested(each, ContainerKind.SIDECAR if each.is_sidecar else ContainerKind.INIT)
        for each in pod.init_containers
    )
    return (*inits, *(_requested(each, ContainerKind.APP) for each in pod.containers))


def _requested(container: Container, kind: ContainerKind) -> ContainerRequest:
    units, sets_cards = _units(container), _sets_cards(container)
    return ContainerRequest(container.name, units, kind, sets_cards, _hides_cards(container))


def units_of(pod: Pod) -> int:
    """Return what the containers ask for in all, by their limits; RequestError if unreadable."""
    return Request(containers_of(pod)).units


def share_of(pod: Pod, inventory: Inventory | None, units: int | None = None) -> Share | None:
    """Return the share of a bound pod; None if it has none (unbound, ended, requests nothing).

    ``units`` is the result of ``units_of`` for the pod, if known. The cards are read from the
    decision's UUIDs. Aliyun gpushare's extender writes none: its IDX is the driver's minor number,
    and ``running-on`` with as many cards takes precedence. If no card can be read, or the node does
    not have one of them, the share is unplaced.
    """
    if not pod.spec.node_name or pod.status.phase in TERMINAL_PHASES:
        return None
    if units is None:
        if not asks_for_share(pod):
            return None
        try:
            units = units_of(pod)
        except RequestError as err:
            # Bound by another program than this extender: the node takes no more until it ends.
            return _share(pod, MAX_UNITS, (), f"amount cannot be read: {err}")
    if not units:
        return None
    try:
        cards = _cards_of(pod, inventory)
    except RecordError as err:
        return _share(pod, units, (), str(err))
    return _share(pod, -(-units // len(cards)), cards)


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


def counted_as(before: Pod | None, pod: Pod, *, is_legacy: bool) -> tuple[Pod, bool]:
    """Return the pod with the decision that counts, and whether the decision was edited."""
    kept = None
    if before is not None and pod.spec.node_name:
        if before.spec.node_name:
            kept = keep_decision(before, pod)
        else:
            kept = not_from_a_binding(before, pod, is_legacy=is_legacy)
    return kept or pod, kept is not None or contradicts_decision(pod)


def keep_decision(before: Pod, after: Pod) -> Pod | None:
    """Return the pod ``after`` with the decision of ``before``; None if that is unchanged.

    Once a pod is bound, its decision never changes, nor do its cards once the plugin has reported
    them: later edits are ignored.
    """
    if not before.node or before.uid != after.uid:
        return None
    kept = {key: before.annotations.get(key) for key in PLACE_KEYS}
    if before.annotations.get(ANNOTATION_RUNNING_ON):
        kept[ANNOTATION_RUNNING_ON] = before.annotations[ANNOTATION_RUNNING_ON]
    if all(after.annotations.get(key) == value for key, value in kept.items()):
        return None
    annotations = {k: v for k, v in after.annotations.items() if k not in kept}
    annotations |= {key: value for key, value in kept.items() if value is not None}
    metadata = replace(after.metadata, annotations=annotations)
    return replace(after, metadata=metadata)


def not_from_a_binding(before: Pod, after: Pod, *, is_legacy: bool) -> Pod | None:
    """Return the newly bound pod ``after`` without its earlier decision; None if that is new.

    Every Binding of ours writes all keys, with a unique time. Values that were on the unbound pod
    and did not change were written by its user, and another scheduler bound it. On a node of Aliyun
    gpushare's device plugin (``is_legacy``), an index without UUIDs is accepted, because Aliyun
    gpushare's extender writes it before it binds.
    """
    if before.node or not after.node or before.uid != after.uid:
        return None
    keys = (ANNOTATION_CARDS,) if is_legacy else PLACE_KEYS
    kept = (*keys, ANNOTATION_ASSUME_TIME)
    is_preset = any(before.annotations.get(key) for key in keys) and all(
        before.annotations.get(key) == after.annotations.get(key) for key in kept
    )
    if not is_preset:
        return None
    believed = {*PLACE_KEYS, ANNOTATION_RUNNING_ON}
    annotations = {k: v for k, v in after.annotations.items() if k not in believed}
    metadata = replace(after.metadata, annotations=annotations)
    return replace(after, metadata=metadata)


def contradicts_decision(pod: Pod) -> bool:
    """Return whether ``running-on`` of a bound pod names other cards than its decision.

    The device plugin starts containers only on the decided cards, so the value was edited.
    """
    decided = (pod.metadata.annotations or {}).get(ANNOTATION_CARDS)
    if not (pod.spec.node_name and decided):
        return False
    running_on = _running_on(pod)
    return bool(running_on) and set(running_on) != {uuid.strip() for uuid in decided.split(",")}


def encode_running_on(request: Request, cards: Sequence[str]) -> str:
    return msgspec.json.encode(
        {
            container.name: dict.fromkeys(cards, container.units // len(cards))
            for container in request.containers
            if container.units
        }
    ).decode()


def _share(pod: Pod, units: int, cards: tuple[str, ...], why: str = "") -> Share:
    meta, node = pod.metadata, pod.spec.node_name or ""
    return Share(meta.uid, meta.namespace, meta.name, node, units, cards, why)


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


def _units(container: Container) -> int:
    amount = container.limits.get(RESOURCE_MEMORY, container.requests.get(RESOURCE_MEMORY))
    if amount is None:
        return 0
    try:
        units = parse_units(amount)
    except QuantityError as err:
        raise RequestError(f"container {container.name} asks for {RESOURCE_MEMORY}: {err}") from err
    if units >= BYTES_BY_MISTAKE and str(amount).endswith("i"):
        raise RequestError(
            f"container {container.name} asks for {RESOURCE_MEMORY} {amount}, which is {units} "
            "units: it is a number of units, not of bytes"
        )
    return units


def _holds_devices(container: Container) -> bool:
    try:
        return _units(container) > 0
    except RequestError:
        return True


def _sets_cards(container: Container) -> bool:
    return names_memory(container) and any(
        variable.name == ENV_VISIBLE_DEVICES for variable in container.env or ()
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
        running_on = _running_on(pod)
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


def _running_on(pod: Pod) -> tuple[str, ...]:
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
        raise RecordError(f"annotation {ANNOTATION_INDEX} names a card of a node without inventory")
    parts = index.split(",")
    uuids = tuple(_uuid_of_minor(part.strip(), inventory) for part in parts[: MAX_CARDS + 1])
    if not 1 <= len(set(uuids)) == len(uuids) <= MAX_CARDS:
        raise RecordError(f"annotation {ANNOTATION_INDEX} names a card twice: {index[:200]!r}")
    return uuids


def _uuid_of_minor(text: str, inventory: Inventory) -> str:
    card = None
    if text.isascii() and text.isdigit() and len(text) <= 4:  # noqa: PLR2004 - no larger minors
        card = inventory.by_minor(int(text))
    if card is None:
        raise RecordError(f"annotation {ANNOTATION_INDEX} is {text[:63]!r}, which is no card here")
    return card.uuid
