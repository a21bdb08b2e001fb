"""what-if about a gang: whether its pods would start as a whole now (pure)."""

from collections.abc import Generator, Sequence
from dataclasses import replace as replaced
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from gpushare.answers import gang_text
from gpushare.answers.gangs import facts_of
from gpushare.answers.what_if import (
    ANY_LOWER,
    BUDGETS,
    OWNER,
    Answer,
    EvictionPlan,
    Extras,
    GangOutlook,
    copies,
    not_checked,
    places_of,
    plan_evictions,
)
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.groups.index import Groups
from gpushare.groups.model import MOST_MEMBERS, PodGroup
from gpushare.groups.pod_groups import API_GROUPS
from gpushare.groups.sources import key_of
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import read_pod
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask, Plan, ZoneRole
from gpushare.planning.planner import Planner
from gpushare.preemption.model import PreemptionWorld, Rules

ASSUMED: Final = "the PodGroup, which is not in the question: all pods were assumed to be needed"
CREATED: Final = "whether the controller creates all pods before the first is Ready"


class Part(msgspec.Struct):
    """So many equal pods of the gang; ``extras`` is what of the pod was not read."""

    pod: Pod
    count: int = 1
    extras: Extras | None = None


class GangQuestion(msgspec.Struct):
    """A gang as it would be created. ``minimum`` and ``zone_key`` are those of its PodGroup.

    ``minimum`` is None without a PodGroup. ``evict`` is as in what_if.Question.
    """

    parts: list[Part]
    minimum: int | None = None
    zone_key: str = ""
    evict: bool = False


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    pod: msgspec.Raw
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)] = 1


class _Body(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    pods: Annotated[list[_Part], msgspec.Meta(min_length=1, max_length=MOST_MEMBERS)]
    minimum: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)] | None = None
    zone_key: str = ""
    evict: bool = False


_decode_body: Final = msgspec.json.Decoder(_Body).decode
_decode_manifest: Final = msgspec.json.Decoder(Extras).decode


def read_question(body: bytes) -> GangQuestion:
    """Decode the question in a body; raises one of UNDECODABLE.

    All pods have to be of one gang, and no more than a gang may have.
    """
    found = _decode_body(body)
    parts = []
    for number, each in enumerate(found.pods):
        manifest = b'{"pod":%b}' % bytes(each.pod)
        try:
            parts.append(Part(read_pod(each.pod), each.count, _decode_manifest(manifest)))
        except msgspec.ValidationError as err:
            text = str(err) if "`$" in str(err) else f"{err} - at `$`"
            text = text.replace("`$.pod", "`$").replace("`$", f"`$.pods[{number}].pod")
            raise msgspec.ValidationError(text) from err
    _check(parts)
    return GangQuestion(parts, found.minimum, found.zone_key, found.evict)


def _check(parts: Sequence[Part]) -> None:
    for number, part in enumerate(parts):
        place = f"at `$.pods[{number}].pod`"
        if part.extras is not None and part.extras.pod.kind != "Pod":
            raise msgspec.ValidationError(f"send a Pod; for a workload, its pod template - {place}")
        if not part.pod.containers:
            raise msgspec.ValidationError(f"pod has no containers - {place}")
        if key_of(part.pod) is None:
            raise msgspec.ValidationError(f"pod names no gang - {place}")
    if len({key_of(part.pod) for part in parts}) > 1:
        raise msgspec.ValidationError("the pods are of several gangs: ask about each - at `$.pods`")
    if (number := sum(part.count for part in parts)) > MOST_MEMBERS:
        text = f"the gang has {number} pods, and at most {MOST_MEMBERS} are possible - at `$.pods`"
        raise msgspec.ValidationError(text)


def answer(
    world: PreemptionWorld,
    question: GangQuestion,
    roles: Sequence[ZoneRole] = (),
    rules: Rules = ANY_LOWER,
) -> Generator[None, None, Answer]:
    """Answer whether the gang would start now, in short steps.

    It would be a new gang: members in the cluster do not count. ``rules`` say which pods may be
    evicted.
    """
    group, is_assumed = _group(question)
    members = group.present()
    facts = facts_of(group, world.request_of, world.unit_mib)
    plan: Plan | None = None
    by_evicting: EvictionPlan | UnsetType = UNSET
    if group.problem is None and len(members) >= group.minimum:
        ask = Ask(
            OWNER,
            tuple(members),
            group.minimum,
            zone_key=group.zone_key,
            cards=_cards(world, members),
            roles=tuple(roles),
        )
        found = yield from Planner(world).plan(ask)
        if isinstance(found, Plan):
            plan = found
        else:
            facts = replaced(facts, no_plan=found)
            if question.evict:
                by_evicting = yield from plan_evictions(world, ask, rules)
    return Answer(
        fits=plan is not None,
        asked=len(members),
        fitting=len(plan.slots) if plan is not None else 0,
        places=places_of(world, plan) if plan is not None else [],
        reasons={},
        would_have_to_go=None,
        not_checked=_not_checked(question, is_assumed=is_assumed),
        unit_mib=world.unit_mib,
        gang=GangOutlook(
            name=group.key.name,
            source=group.key.source.value,
            minimum=group.minimum,
            zone_key=group.zone_key,
            zone=plan.zone if plan is not None else "",
            text=_text(group, plan, len(members))
            if plan is not None
            else gang_text.sentence(facts),
        ),
        by_evicting=by_evicting,
    )


def _group(question: GangQuestion) -> tuple[Group, bool]:
    """Return the gang, and whether all of its pods were assumed to be needed."""
    groups = Groups()
    pods = [
        pod
        for number, part in enumerate(question.parts)
        for pod in copies(part.pod, part.count, number)
    ]
    key = key_of(pods[0])
    assert key is not None, "the question was checked"  # noqa: S101
    is_stated = key.source not in API_GROUPS or question.minimum is not None
    if key.source in API_GROUPS:
        groups.put_pod_group(
            PodGroup(key, question.minimum or len(pods), zone_key=question.zone_key)
        )
    for pod in pods:
        groups.update(pod)
    group = groups.get(key)
    assert group is not None, "it has members"  # noqa: S101
    return group, not is_stated


def _cards(world: World, members: Sequence[Pod]) -> int:
    number = 0
    for pod in members:
        try:
            number += world.request_of(pod).card_count
        except RequestError:
            continue  # requests no GPU memory
    return number


def _text(group: Group, plan: Plan, members: int) -> str:
    where = f" in zone {plan.zone}" if plan.zone else ""
    if len(plan.slots) == members:
        return f"All {members} would start{where}."
    return f"{len(plan.slots)} of {members} would start{where}, at least {group.minimum}."


def _not_checked(question: GangQuestion, *, is_assumed: bool) -> list[str]:
    listed = dict.fromkeys(
        text for part in question.parts for text in not_checked(part.pod, part.extras)
    )
    assumed = [ASSUMED] if is_assumed else []
    budgets = [BUDGETS] if question.evict else []
    return [*assumed, CREATED, *listed, *budgets]
