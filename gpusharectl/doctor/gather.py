"""Gets the facts: everything at once, and in the place of each that cannot be had why not."""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
import yaml

from gpushare.contract import EXTENDER_PORT, RESOURCE_MEMORY
from gpushare.errors import (
    UNDECODABLE,
    ApiError,
    GpushareError,
    NotFound,
    RecordError,
    SettingsError,
)
from gpushare.kube.client import Kube, lease_path, pods
from gpushare.kube.lists import list_all
from gpusharectl import reach
from gpusharectl.doctor import answers, certificate, over_tls
from gpusharectl.doctor.access import account, needed
from gpusharectl.doctor.facts import (
    EXTENDER,
    PLUGIN,
    SECOND_SCHEDULER,
    Election,
    Facts,
    Permission,
    Program,
    Quota,
    Scheduler,
    SeenPod,
    Unknown,
)
from gpusharectl.doctor.scheduler import plain
from gpusharectl.forward import Forward
from gpusharectl.options import Target
from gpusharectl.plugins import before_reasons, plugin_page
from gpusharectl.rights import LIST_PODS, Lacking, Right, named
from gpusharectl.samples import Samples

AT_ONCE: Final = 20
REPLICA_PORT: Final = 32767
SCHEDULER_PORT: Final = 10259
SYSTEM: Final = "kube-system"
TLS_SECRET: Final = "gpushare-extender-tls"  # noqa: S105 - its name
QUOTA: Final = f"requests.{RESOURCE_MEMORY}"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_LOOK_SECONDS: Final = 0.5

T = TypeVar("T")
K = TypeVar("K")


async def gather(
    target: Target, kube: Kube, *, version: str, now: dt.datetime, scheduler_url: str | None
) -> Facts:
    """Everything that the checks look at.

    Raises ApiError where not even nodes and pods can be listed: then nothing can be told.
    SettingsError for a URL that cannot be used.
    """
    address = scheduler_address(scheduler_url) if scheduler_url is not None else None
    nodes, seen = await asyncio.gather(reach.all_nodes(kube), _all_pods(kube))
    bare = Facts(version, now, target.system, tuple(nodes), tuple(seen))
    asks = Asks(target, kube, bare)
    # Before anything else is begun: a --server that cannot be used ends all of it.
    named_extender = await asks.named_extender()
    async with asyncio.TaskGroup() as group:

        def start(get: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            return group.create_task(get)

        server = start(known(asks.server()))
        plugins = start(asks.plugins())
        extenders = start(asks.extenders())
        election = start(known(asks.election()))
        memory_unit = start(known(asks.memory_unit()))
        schedulers = start(asks.schedulers(address))
        certificates = start(asks.certificates())
        policies = start(known(asks.policies("validatingadmissionpolicies")))
        bindings = start(known(asks.policies("validatingadmissionpolicybindings")))
        permissions = start(asks.permissions())
        quotas = start(known(asks.quotas()))
        runtimes = start(known(asks.runtime_classes()))
        runtime = start(known(asks.plugin_runtime()))
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
    )


async def known(get: Awaitable[T]) -> T | Unknown:
    """What it gives, or why it gives nothing. SettingsError is the user's to hear."""
    try:
        return await get
    except SettingsError:
        raise
    except GpushareError as err:
        return Unknown(str(err), lacks_right=isinstance(err, Lacking))
    except UNDECODABLE as err:
        return Unknown(f"the answer cannot be read: {err}")


async def _all_pods(kube: Kube) -> list[SeenPod]:
    try:
        return await list_all(kube, pods(), SeenPod)
    except ApiError as err:
        raise named(err, LIST_PODS) from err


class Asks:
    """One method for each fact; ``bare`` has nodes and pods."""

    def __init__(self, target: Target, kube: Kube, bare: Facts) -> None:
        self._target, self._kube, self._bare = target, kube, bare
        self._system = target.system

    async def server(self) -> str:
        right = Right("get", "/version", is_namespaced=False)
        return (await self._get("/version", right, answers.Version)).git_version

    async def plugins(self) -> dict[str, Program | Unknown]:
        names = [pod.metadata.name for pod in self._bare.pods_of(PLUGIN) if pod.node]
        return await each_known(names, self._plugin)

    async def _plugin(self, pod: str) -> Program:
        async def get(page: str) -> bytes:
            return await plugin_page(self._kube, self._system, pod, page)

        return await program(get, before_reasons(self._system, pod))

    async def named_extender(self) -> dict[str, Program | Unknown]:
        """The one that ``--server`` names; nothing without it. SettingsError for a bad URL."""
        named = [self._target.server] if self._target.server is not None else []
        return await each_known(named, self._extender_by_url)

    async def extenders(self) -> dict[str, Program | Unknown]:
        """Those that run as pods, where none is named."""
        if self._target.server is not None:
            return {}
        running = self._bare.pods_of(EXTENDER, SECOND_SCHEDULER)
        return await each_known([pod.metadata.name for pod in running if pod.node], self._extender)

    async def _extender(self, pod: str) -> Program:
        where = f"extender in pod {self._system}/{pod}"
        async with (
            Forward.to(self._kube, self._system, pod, EXTENDER_PORT) as forward,
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(forward.socket))) as session,
        ):
            base = f"http://127.0.0.1:{EXTENDER_PORT}"
            asked = reach.Extender(session, base, where, forward=forward)
            return await program(asked.get, f"{where}: ")

    async def _extender_by_url(self, _: str) -> Program:
        async with reach.extender(self._target, self._kube) as asked:
            return await program(asked.get, f"{asked.where}: ")

    async def election(self) -> Election | None:
        right = Right("get", "leases.coordination.k8s.io", self._system)
        path = lease_path(self._system, EXTENDER)
        try:
            first = await self._get(path, right, answers.Lease)
        except NotFound:
            return None
        seconds, seen = first.spec.lease_duration_seconds or 0, first.metadata.resource_version
        # Clocks of two machines are never compared: it is looked at until it changes.
        end = asyncio.get_running_loop().time() + seconds
        is_renewed = False
        while not is_renewed and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_LOOK_SECONDS)
            now = await self._get(path, right, answers.Lease)
            is_renewed = now.metadata.resource_version != seen
        return Election(first.spec.holder_identity or "", seconds, is_renewed)

    async def memory_unit(self) -> str | None:
        """Of the file that an extender's pod mounts."""
        for pod in self._bare.pods_of(EXTENDER, SECOND_SCHEDULER):
            name = pod.configuration
            if name:
                path = f"/api/v1/namespaces/{self._system}/configmaps/{name}"
                right = Right("get", "configmaps", self._system)
                found = await self._get(path, right, answers.ConfigMap)
                return _unit((found.data or {}).get("extender.yaml") or "")
        return None

    async def schedulers(self, address: tuple[str, int] | None) -> dict[str, Scheduler | Unknown]:
        if address is not None:
            host, port = address
            name = f"kube-scheduler at {host}:{port}"
            return {name: await known(self._configuration(address, ""))}
        here = {
            f"{pod.metadata.namespace}/{pod.metadata.name}": pod
            for pod in (*self._kube_schedulers(), *self._bare.pods_of(SECOND_SCHEDULER))
            if pod.node
        }
        if not here:
            why = (
                f"no kube-scheduler runs as a pod in {SYSTEM} (label component=kube-scheduler): "
                "--scheduler-url=https://HOST:10259 names one"
            )
            return {"kube-scheduler": Unknown(why)}

        async def ask(name: str) -> Scheduler:
            pod = here[name]
            namespace = pod.metadata.namespace
            async with Forward.to(
                self._kube, namespace, pod.metadata.name, SCHEDULER_PORT
            ) as forward:
                try:
                    return await self._configuration(forward.socket, pod.node)
                except ApiError as err:
                    raise forward.problem or err from err

        return await each_known(here, ask)

    def _kube_schedulers(self) -> list[SeenPod]:
        return [
            pod
            for pod in self._bare.pods
            if pod.metadata.namespace == SYSTEM and pod.labels.get("component") == "kube-scheduler"
        ]

    async def _configuration(self, address: over_tls.Address, node: str) -> Scheduler:
        own = self._kube.client_certificate
        if own is None:
            raise ApiError(
                "kube-scheduler's certificate is vouched for by nobody, so it is shown no token, "
                "and the kubeconfig has no client certificate"
            )
        status, body = await asyncio.to_thread(over_tls.page, address, "/configz", own)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            right = Right("get", "/configz", is_namespaced=False)
            raise named(ApiError("refused", code=HTTPStatus.FORBIDDEN), right)
        if status != HTTPStatus.OK:
            raise ApiError(f"/configz: {status}: {body[:200].decode(errors='replace')}")
        try:
            found = msgspec.json.decode(body, type=answers.Configz)
        except UNDECODABLE as err:
            raise ApiError(f"/configz cannot be read: {err}") from err
        return Scheduler(node, plain(found.componentconfig))

    async def certificates(self) -> dict[str, dt.datetime | Unknown]:
        """What each replica shows; where that cannot be asked, what the Secret has."""
        names = [pod.metadata.name for pod in self._bare.pods_of(EXTENDER, SECOND_SCHEDULER)]
        found = await each_known(names, self._shown_certificate)
        unknown = [each for each in found.values() if isinstance(each, Unknown)]
        if not unknown:
            return found
        kept = await known(self._kept_certificate())
        if isinstance(kept, Unknown):
            return {TLS_SECRET: Unknown(f"{unknown[0].why}; {kept.why}")}
        return {**{k: v for k, v in found.items() if v not in unknown}, TLS_SECRET: kept}

    async def _shown_certificate(self, pod: str) -> dt.datetime:
        async with Forward.to(self._kube, self._system, pod, REPLICA_PORT) as forward:
            try:
                return certificate.ends(await asyncio.to_thread(over_tls.shown, forward.socket))
            except ApiError as err:
                raise forward.problem or err from err

    async def _kept_certificate(self) -> dt.datetime:
        path = f"/api/v1/namespaces/{self._system}/secrets/{TLS_SECRET}"
        found = await self._get(path, Right("get", "secrets", self._system), answers.Secret)
        return certificate.ends(certificate.first_of((found.data or {}).get("tls.crt") or b""))

    async def policies(self, kind: str) -> frozenset[str]:
        right = Right("list", f"{kind}.admissionregistration.k8s.io", is_namespaced=False)
        try:
            found = await self._get(f"{_ADMISSION}/{kind}", right, answers.NamedList)
        except NotFound:  # a Kubernetes that is too old for them
            return frozenset()
        return found.names

    async def permissions(self) -> dict[Permission, bool | Unknown]:
        return await each_known(needed(self._system), self._is_allowed)

    async def _is_allowed(self, wanted: Permission) -> bool:
        resource, _, subresource = wanted.resource.partition("/")
        attributes = {
            "verb": wanted.verb,
            "group": wanted.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": wanted.namespace,
            "name": wanted.name,
        }
        spec = {"user": account(wanted, self._system), "resourceAttributes": attributes}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**spec, "groups": groups(self._system)},
        }
        right = Right("create", "subjectaccessreviews.authorization.k8s.io", is_namespaced=False)
        try:
            answer = await self._kube.request("POST", _REVIEWS, body=body)
        except ApiError as err:
            raise named(err, right) from err
        return msgspec.json.decode(answer, type=answers.Review).status.allowed

    async def quotas(self) -> tuple[Quota, ...]:
        right = Right("list", "resourcequotas")
        found = await self._get("/api/v1/resourcequotas", right, answers.QuotaList)
        return tuple(
            Quota(
                each.metadata.namespace,
                each.metadata.name,
                hard,
                (each.status.used or {}).get(QUOTA, "0"),
            )
            for each in found.items or ()
            if (hard := (each.status.hard or {}).get(QUOTA)) is not None
        )

    async def runtime_classes(self) -> frozenset[str]:
        right = Right("list", "runtimeclasses.node.k8s.io", is_namespaced=False)
        path = "/apis/node.k8s.io/v1/runtimeclasses"
        return (await self._get(path, right, answers.NamedList)).names

    async def plugin_runtime(self) -> str:
        right = Right("get", "daemonsets.apps", self._system)
        path = f"/apis/apps/v1/namespaces/{self._system}/daemonsets/{PLUGIN}"
        try:
            return (await self._get(path, right, answers.DaemonSet)).runtime
        except NotFound:
            return ""

    async def _get(self, path: str, right: Right, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(await self._kube.request("GET", path), type=kind)
        except ApiError as err:
            raise named(err, right) from err


def scheduler_address(url: str) -> tuple[str, int]:
    """Host and port of a kube-scheduler's URL; SettingsError where it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or SCHEDULER_PORT
    except ValueError:
        parts, host, port = None, None, 0
    if parts is None or parts.scheme != "https" or not host:
        raise SettingsError(f"--scheduler-url is {url!r}: write https://HOST:{SCHEDULER_PORT}")
    return host, port


def groups(system: str) -> list[str]:
    """The groups that the API server puts every account of ``system`` into."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{system}", "system:authenticated"]


async def program(get: Callable[[str], Awaitable[bytes]], before: str) -> Program:
    """What a program says of itself; ``before`` is what its own words come after in an error."""
    version = msgspec.json.decode(await get("/version"), type=answers.About).version
    reasons: tuple[str, ...] = ()
    try:
        await get("/readyz")
    except ApiError as err:
        if err.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        reasons = tuple(str(err).removeprefix(before).strip().splitlines()) or ("no reason",)
    return Program(version, reasons, Samples((await get("/metrics")).decode(errors="replace")))


async def each_known(keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T | Unknown]:
    """What ``ask`` gives for each, or why it gives nothing; a few at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(key: K) -> T | Unknown:
        async with room:
            return await known(ask(key))

    wanted = list(keys)
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))


def _unit(text: str) -> str:
    """The memoryUnit of an extender's configuration file; RecordError where it is no such."""
    try:
        found = yaml.safe_load(text) or {}
    except yaml.YAMLError as err:
        raise RecordError(f"the extender's configuration cannot be read: {err}") from err
    if not isinstance(found, dict):
        raise RecordError("the extender's configuration cannot be read: it is no mapping")
    return str(found.get("memoryUnit") or "GiB")
