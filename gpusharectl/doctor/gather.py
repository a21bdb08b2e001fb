"""Gets the facts: everything at once, and in the place of each that cannot be had why not."""

import asyncio
import datetime as dt
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from gpushare.errors import ApiError
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import pods
from gpusharectl.doctor.api import TLS_SECRET, Api
from gpusharectl.doctor.checks.facts import Facts, SeenPod, Unknown
from gpusharectl.doctor.known import known
from gpusharectl.doctor.programs import Programs, scheduler_address
from gpusharectl.reach import extender
from gpusharectl.reach.options import Target
from gpusharectl.reach.rights import LIST_PODS, named

T = TypeVar("T")


async def gather(
    target: Target, kube: Kube, *, version: str, now: dt.datetime, scheduler_url: str | None
) -> Facts:
    """Everything that the checks look at.

    Raises ApiError where not even nodes and pods can be listed: then nothing can be told.
    SettingsError for a URL that cannot be used.
    """
    address = scheduler_address(scheduler_url) if scheduler_url is not None else None
    nodes, seen = await asyncio.gather(extender.all_nodes(kube), _all_pods(kube))
    bare = Facts(version, now, target.system, tuple(nodes), tuple(seen))
    api, programs = Api(kube, bare), Programs(target, kube, bare)
    # Before anything else is begun: a --server that cannot be used ends all of it.
    named_extender = await programs.named_extender()
    async with asyncio.TaskGroup() as group:

        def start(get: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            return group.create_task(get)

        server = start(known(api.server()))
        plugins = start(programs.plugins())
        extenders = start(programs.extenders())
        election = start(known(api.election()))
        memory_unit = start(known(api.memory_unit()))
        schedulers = start(programs.schedulers(address))
        certificates = start(_certificates(programs, api))
        policies = start(known(api.policies("validatingadmissionpolicies")))
        bindings = start(known(api.policies("validatingadmissionpolicybindings")))
        permissions = start(api.permissions())
        quotas = start(known(api.quotas()))
        runtimes = start(known(api.runtime_classes()))
        runtime = start(known(api.plugin_runtime()))
        node_ports = start(known(api.node_ports()))
    return replace(
        bare,
        server=server.result(),
        plugins=plugins.result(),
        extenders=named_extender or extenders.result(),
        election=election.result(),
        memory_unit=memory_unit.result(),
        schedulers=schedulers.result(),
        certificates=certificates.result(),
        policies=policies.result(),
        policy_bindings=bindings.result(),
        permissions=permissions.result(),
        quotas=quotas.result(),
        runtime_classes=runtimes.result(),
        plugin_runtime=runtime.result(),
        node_ports=node_ports.result(),
    )


async def _all_pods(kube: Kube) -> list[SeenPod]:
    try:
        return await list_all(kube, pods(), SeenPod)
    except ApiError as err:
        raise named(err, LIST_PODS) from err


async def _certificates(programs: Programs, api: Api) -> dict[str, dt.datetime | Unknown]:
    """What each replica shows; where that cannot be asked, what the Secret has."""
    found = await programs.certificates()
    unknown = [each for each in found.values() if isinstance(each, Unknown)]
    if not unknown:
        return found
    kept = await known(api.kept_certificate())
    if isinstance(kept, Unknown):
        return {TLS_SECRET: Unknown(f"{unknown[0].why}; {kept.why}")}
    shown = {name: end for name, end in found.items() if not isinstance(end, Unknown)}
    return {**shown, TLS_SECRET: kept}
