"""Decide which decision of a bound pod counts when its annotations were edited (pure)."""

from msgspec.structs import replace

from gpushare.annotations.pod_annotations import PLACE_KEYS, running_on_cards
from gpushare.contract import ANNOTATION_ASSUME_TIME, ANNOTATION_CARDS, ANNOTATION_RUNNING_ON
from gpushare.objects.model import Pod


def counted_as(before: Pod | None, pod: Pod, *, is_legacy: bool) -> tuple[Pod, bool]:
    """Return the pod with the decision that counts, and whether the decision was edited.

    Once it was, the pod has ``was_edited`` for good.
    """
    kept = None
    if before is not None and pod.spec.node_name:
        if before.spec.node_name:
            kept = keep_decision(before, pod)
        else:
            kept = not_from_a_binding(before, pod, is_legacy=is_legacy)
    is_edited = kept is not None or contradicts_decision(pod)
    found = kept or pod
    if is_edited or (before is not None and before.was_edited):
        found = replace(found, was_edited=True)
    return found, is_edited


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
    running_on = running_on_cards(pod)
    return bool(running_on) and set(running_on) != {uuid.strip() for uuid in decided.split(",")}
