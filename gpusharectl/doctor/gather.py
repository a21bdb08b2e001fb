"""Gets the facts: everything at once, and in the place of each that cannot be had why not."""

import asyncio
import base64
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable
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
from gpusharectl.doctor import certificate, over_tls
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
    nodes, seen = await asyncio.gather(reach.all_nodes(kube), _all_pods(kube))
    bare = Facts(version, now, target.system, tuple(nodes), tuple(seen))
    try:
        return await _gather(Asks(target, kube, bare), bare, scheduler_url)
    except ExceptionGroup as group:
        raise _first(group) from None


async def _gather(asks: "Asks", bare: Facts, scheduler_url: str | None) -> Facts:
    async with asyncio.TaskGroup() as group:

        def start(get: Awaitable[T]) -> asyncio.Task[T]:
            return group.create_task(_awaited(get))

        server = start(known(asks.server()))
        plugins = start(asks.plugins())
        extenders = start(asks.extenders())
        election = start(known(asks.election()))
        memory_unit = start(known(asks.memory_unit()))
        schedulers = start(asks.schedulers(scheduler_url))
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
        extenders=extenders.result(),
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


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


async def _awaited(get: Awaitable[T]) -> T:
    return await get


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
        return str(
            (await self._json("/version", Right("get", "/version", is_namespaced=False)))[
                "gitVersion"
            ]
        )

    async def plugins(self) -> dict[str, Program | Unknown]:
        names = [pod.metadata.name for pod in self._bare.pods_of(PLUGIN) if pod.node]
        return await each_known(names, self._plugin)

    async def _plugin(self, pod: str) -> Program:
        async def get(page: str) -> bytes:
            return await plugin_page(self._kube, self._system, pod, page)

        return await program(get, before_reasons(self._system, pod))

    async def extenders(self) -> dict[str, Program | Unknown]:
        if self._target.server is not None:
            return await each_known([self._target.server], self._extender_by_url)
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
            first = await self._json(path, right)
        except NotFound:
            return None
        spec = first.get("spec") or {}
        seconds = int(spec.get("leaseDurationSeconds") or 0)
        seen = first["metadata"]["resourceVersion"]
        # Clocks of two machines are never compared: it is looked at until it changes.
        end = asyncio.get_running_loop().time() + seconds
        is_renewed = False
        while not is_renewed and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_LOOK_SECONDS)
            is_renewed = (await self._json(path, right))["metadata"]["resourceVersion"] != seen
        return Election(str(spec.get("holderIdentity") or ""), seconds, is_renewed)

    async def memory_unit(self) -> str | None:
        """Of the file that an extender's pod mounts."""
        for pod in self._bare.pods_of(EXTENDER, SECOND_SCHEDULER):
            name = pod.configuration
            if name:
                path = f"/api/v1/namespaces/{self._system}/configmaps/{name}"
                found = await self._json(path, Right("get", "configmaps", self._system))
                return _unit((found.get("data") or {}).get("extender.yaml") or "")
        return None

    async def schedulers(self, url: str | None) -> dict[str, Scheduler | Unknown]:
        if url is not None:
            return await each_known([url], self._scheduler_by_url)
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

    async def _scheduler_by_url(self, url: str) -> Scheduler:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise SettingsError(f"--scheduler-url is {url!r}: write https://HOST:{SCHEDULER_PORT}")
        return await self._configuration((parts.hostname, parts.port or SCHEDULER_PORT), "")

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
            found = msgspec.json.decode(body, type=dict[str, dict[str, Any]])
            return Scheduler(node, plain(found["componentconfig"]))
        except (KeyError, *UNDECODABLE) as err:
            raise ApiError(f"/configz cannot be read: {err!r}") from err

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
        found = await self._json(path, Right("get", "secrets", self._system))
        pem = base64.b64decode((found.get("data") or {}).get("tls.crt") or "")
        return certificate.ends(certificate.first_of(pem))

    async def policies(self, kind: str) -> frozenset[str]:
        right = Right("list", f"{kind}.admissionregistration.k8s.io", is_namespaced=False)
        try:
            found = await self._json(f"{_ADMISSION}/{kind}", right)
        except NotFound:  # a Kubernetes that is too old for them
            return frozenset()
        return frozenset(each["metadata"]["name"] for each in found["items"])

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
        return bool(msgspec.json.decode(answer)["status"].get("allowed"))

    async def quotas(self) -> tuple[Quota, ...]:
        found = await self._json("/api/v1/resourcequotas", Right("list", "resourcequotas"))
        quotas = []
        for each in found["items"]:
            status = each.get("status") or {}
            hard = (status.get("hard") or {}).get(QUOTA)
            if hard is not None:
                used = (status.get("used") or {}).get(QUOTA) or "0"
                meta = each["metadata"]
                quotas.append(Quota(meta["namespace"], meta["name"], str(hard), str(used)))
        return tuple(quotas)

    async def runtime_classes(self) -> frozenset[str]:
        right = Right("list", "runtimeclasses.node.k8s.io", is_namespaced=False)
        found = await self._json("/apis/node.k8s.io/v1/runtimeclasses", right)
        return frozenset(each["metadata"]["name"] for each in found["items"])

    async def plugin_runtime(self) -> str:
        right = Right("get", "daemonsets.apps", self._system)
        path = f"/apis/apps/v1/namespaces/{self._system}/daemonsets/{PLUGIN}"
        try:
            found = await self._json(path, right)
        except NotFound:
            return ""
        return str(found["spec"]["template"]["spec"].get("runtimeClassName") or "")

    async def _json(self, path: str, right: Right) -> Any:
        try:
            return msgspec.json.decode(await self._kube.request("GET", path))
        except ApiError as err:
            raise named(err, right) from err


def groups(system: str) -> list[str]:
    """The groups that the API server puts every account of ``system`` into."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{system}", "system:authenticated"]


async def program(get: Callable[[str], Awaitable[bytes]], before: str) -> Program:
    """What a program says of itself; ``before`` is what its own words come after in an error."""
    version = msgspec.json.decode(await get("/version"), type=dict[str, str])["version"]
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
