"""Gather the facts, all at once; those that cannot be read are Unknown."""

import asyncio
import datetime as dt
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

from gpushare.errors import ApiError
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import pods
from gpusharectl.doctor.api import Api
from gpusharectl.doctor.facts.cluster import Facts
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.known import known
from gpusharectl.doctor.programs import Programs, scheduler_address
from gpusharectl.reach import extender
from gpusharectl.reach.options import Target
from gpusharectl.reach.rights import Lacking, Right, needing

FOR_ONE_POD: Final = "For one pod, use `gpushare explain pod NAME`."


async def gather(
    target: Target, kube: Kube, *, version: str, now: dt.datetime, scheduler_url: str | None
) -> Facts:
    """Return everything that the checks read.

    Raises ApiError if nodes or pods cannot be listed, SettingsError for an unusable URL.
    """
    address = scheduler_address(scheduler_url) if scheduler_url is not None else None
    try:
        nodes, seen = await asyncio.gather(extender.all_nodes(kube), _all_pods(kube))
    except Lacking as err:
        text = f"doctor checks the whole cluster, and {err}. {FOR_ONE_POD}"
        raise ApiError(text, code=err.code) from err
    bare = Facts(version, now, target.system, tuple(nodes), tuple(seen))
    api, programs = Api(kube, bare), Programs(target, kube, bare)
    # First, because an unusable --server ends everything.
    named_extender = await programs.named_extender()
    wanted: dict[str, Coroutine[Any, Any, Any]] = {
        "server": known(api.server()),
        "plugins": programs.plugins(),
        "extenders": programs.extenders(),
        "election": known(api.election()),
        "memory_unit": known(api.memory_unit()),
        "schedulers": programs.schedulers(address),
        "policies": known(api.policies("validatingadmissionpolicies")),
        "policy_bindings": known(api.policies("validatingadmissionpolicybindings")),
        "permissions": api.permissions(),
        "quotas": known(api.quotas()),
        "runtime_classes": known(api.runtime_classes()),
        "has_namespace": known(api.has_namespace()),
        "workloads": known(api.workloads()),
        "warned": known(api.warned()),
        "operators": known(api.operators()),
        "node_ports": known(api.node_ports()),
        "webhooks": known(api.webhooks()),
        "queues": known(api.queues()),
        "limits": known(api.limits()),
        "gating": known(api.gating()),
        "gates": known(api.gates()),
        "preempts": known(api.preempts()),
        "placement": known(api.section("policy")),
        "profile_rules": known(api.section("scheduler")),
        "scheduler_names": known(api.scheduler_names()),
    }
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(get) for name, get in wanted.items()}
    found = {name: task.result() for name, task in tasks.items()}
    found["extenders"] = named_extender or found["extenders"]
    return replace(bare, **found)


async def _all_pods(kube: Kube) -> list[SeenPod]:
    with needing(Right("list", "pods")):
        return await list_all(kube, pods(), SeenPod)
