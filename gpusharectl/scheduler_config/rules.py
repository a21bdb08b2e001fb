"""kube-scheduler's configuration: a new file, an existing one merged, and kubeadm's part."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpushare.contract import EXTENDER_PORT, EXTENDER_PREFIX, RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.errors import SettingsError
from gpushare.text.manual import manual

BESIDE: Final = f"http://127.0.0.1:{EXTENDER_PORT}{EXTENDER_PREFIX}"
KUBECONFIG: Final = "/etc/kubernetes/scheduler.conf"
PLACE: Final = "/etc/kubernetes/gpushare-scheduler.yaml"  # where kubeadm expects the file
SERVER_NAME: Final = "gpushare-extender"  # in the extender's certificate
_KIND: Final = ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration")
_ALL_NODES: Final = 100
_OURS: Final = frozenset({RESOURCE_MEMORY, RESOURCE_COUNT})


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths on kube-scheduler's node, and the name in the extender's certificate."""

    authority: str
    certificate: str
    key: str
    server_name: str


@dataclass(frozen=True, slots=True)
class ExtenderUrl:
    """Where kube-scheduler calls the extender."""

    url: str = BESIDE
    tls: Tls | None = None


def first(extender: ExtenderUrl, kubeconfig: str = KUBECONFIG) -> str:
    """Return the configuration of the cluster's own kube-scheduler as YAML."""
    return (
        f"""\
# kube-scheduler's configuration with the extender:
# {manual("install.md")}
apiVersion: {_KIND[0]}
kind: {_KIND[1]}
clientConnection:
  kubeconfig: {kubeconfig}
  # By default kube-scheduler makes at most 50 requests a second: a Binding for each pod without GPU
  # memory, and an Event for each pod.
  qps: 1000
  burst: 2000
"""
        + _NODES
        + _asked(extender)
    )


def second() -> str:
    """Return the configuration of a second kube-scheduler as YAML."""
    return (
        f"""\
# The configuration of the second kube-scheduler, with its own name and Lease, and the
# ServiceAccount of its pod instead of a kubeconfig.
apiVersion: {_KIND[0]}
kind: {_KIND[1]}
clientConnection:
  qps: 1000
  burst: 2000
leaderElection:
  leaderElect: true
  resourceNamespace: gpushare-system
  resourceName: gpushare-scheduler
profiles:
  - schedulerName: gpushare-scheduler
"""
        + _NODES
        + _asked(ExtenderUrl())
    )


_NODES: Final = """\
# By default kube-scheduler stops searching when it has enough nodes. On a large cluster, none of
# these may have a GPU with room while another node has one.
percentageOfNodesToScore: 100
"""


def _asked(extender: ExtenderUrl) -> str:
    tls = extender.tls
    secured = (
        "    enableHTTPS: false\n"
        if tls is None
        else f"""\
    enableHTTPS: true
    tlsConfig:
      serverName: {tls.server_name}
      # Without caFile kube-scheduler would not verify the extender.
      caFile: {tls.authority}
      certFile: {tls.certificate}
      keyFile: {tls.key}
"""
    )
    return f"""\
extenders:
  - urlPrefix: {extender.url}
    filterVerb: filter
    prioritizeVerb: prioritize
    # The extender sets the effect of its scores for each pod.
    weight: 1
    preemptVerb: preempt
    bindVerb: bind
{secured}\
    # The extender needs only names. Whole nodes cost kube-scheduler a copy each.
    nodeCacheCapable: true
    # Never true: kube-scheduler would bind pods without a GPU while the extender is unavailable.
    ignorable: false
    # The extender answers a bind within 4.6 s, even if the API server does not.
    httpTimeout: 5s
    managedResources:
      # With both, a pod that requests only gpu-count is rejected with a reason.
      - name: {RESOURCE_MEMORY}
        ignoredByScheduler: false
      - name: {RESOURCE_COUNT}
        ignoredByScheduler: false
"""


def kubeadm(extender: ExtenderUrl) -> str:
    """Return the part of kubeadm's ClusterConfiguration that mounts the file, as YAML."""
    tls = extender.tls
    files = {"gpushare": PLACE}
    if tls is not None:
        files |= {
            "gpushare-authority": tls.authority,
            "gpushare-certificate": tls.certificate,
            "gpushare-key": tls.key,
        }
    volumes = "".join(
        f"""\
    - name: {name}
      hostPath: {path}
      mountPath: {path}
      readOnly: true
      pathType: File
"""
        for name, path in files.items()
    )
    return f"""\
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
scheduler:
  extraArgs:
    - name: config
      value: {PLACE}
  extraVolumes:
{volumes}"""


def merge(there: Any, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Merge ``wanted`` into the configuration ``there``; return it, and what was changed.

    Other settings stay. SettingsError with all that is incompatible with the extender.
    """
    if not isinstance(there, dict):
        raise SettingsError(
            f"it is not a {_KIND[1]}: use the file that kube-scheduler's --config names"
        )
    if (found_kind := (there.get("apiVersion"), there.get("kind"))) != _KIND:
        said = f"it is a {found_kind[1]} of {found_kind[0]}"
        if None in found_kind:
            said = "it has no kind or no apiVersion"
        raise SettingsError(
            f"{said}; expected a {_KIND[1]} of {_KIND[0]}, which kube-scheduler reads since 1.25: "
            "convert it first"
        )
    _check_kinds(there)
    if found := [*_sampled(there), *_other_extenders(there, wanted["extenders"][0])]:
        raise SettingsError(
            "it is incompatible with the extender:" + "".join(f"\n  {e}" for e in found)
        )
    whole = deepcopy(there)
    told = list(_connect(whole, wanted["clientConnection"]))
    if whole.get("percentageOfNodesToScore") != _ALL_NODES:
        whole["percentageOfNodesToScore"] = _ALL_NODES
        told.append(f"set percentageOfNodesToScore: {_ALL_NODES}")
    told += _extend(whole, wanted["extenders"][0])
    return whole, told


def _check_kinds(there: Mapping[str, Any]) -> None:
    connection = there.get("clientConnection")
    if not isinstance(connection, dict | None):
        raise SettingsError("its clientConnection is not a mapping: kube-scheduler rejects it, too")
    for key in ("extenders", "profiles"):
        listed = there.get(key) or []
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise SettingsError(
                f"its {key} is not a list of mappings: kube-scheduler rejects it, too"
            )


def _sampled(there: Mapping[str, Any]) -> Iterator[str]:
    key = "percentageOfNodesToScore"
    found = {key: there.get(key) or None}  # 0 and nothing mean the same there, and are replaced
    # A profile's own 0 counts: kube-scheduler then chooses the share, from 50 percent down to 5
    # (schedule_one.go, numFeasibleNodesToFind).
    profiles = enumerate(there.get("profiles") or ())
    found |= {f"profiles[{number}].{key}": each.get(key) for number, each in profiles}
    for place, share in found.items():
        if share not in (None, _ALL_NODES):
            yield (
                f"{place} is {share}: the extender would be called for some nodes only, whose GPUs "
                f"may be full; write {_ALL_NODES} or nothing"
            )


def _managed(extender: Mapping[str, Any]) -> frozenset[str]:
    listed = extender.get("managedResources") or ()
    return frozenset(each.get("name", "") for each in listed if isinstance(each, dict))


def _other_extenders(there: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    seen = False
    for number, each in enumerate(there.get("extenders") or ()):
        url = each.get("urlPrefix")
        if url == ours["urlPrefix"] and not seen:
            seen = True
        elif shared := sorted(_managed(each) & _OURS):
            yield (
                f"extenders[{number}] ({url}) manages {' and '.join(shared)}, too: remove it, or "
                "name it with --url if it is gpushare's"
            )
        elif each.get("bindVerb"):
            yield (
                f"extenders[{number}] ({url}) has a bindVerb, and kube-scheduler accepts only one "
                "such extender: use a second kube-scheduler for one of them (--second-scheduler)"
            )


def _connect(whole: dict[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    found = whole.get("clientConnection") or {}
    for key, value in wanted.items():
        own = found.get(key)
        if not own:  # kube-scheduler replaces 0 by its default, 50 writes a second
            found[key] = value
            yield f"added clientConnection.{key}: {value}"
        elif isinstance(value, int) and isinstance(own, int | float) and 0 < own < value:
            yield f"kept clientConnection.{key}: {own} ({value} binds pods faster)"
    whole["clientConnection"] = found


def _extend(whole: dict[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    listed = whole["extenders"] = whole.get("extenders") or []
    for number, each in enumerate(listed):
        if each.get("urlPrefix") != ours["urlPrefix"]:
            continue
        listed[number] = dict(ours)
        for key in [*ours, *(key for key in each if key not in ours)]:
            old, new = each.get(key), ours.get(key)
            if old != new:
                shown = yaml.safe_dump([old, new], default_flow_style=True, width=9999).strip()
                yield f"changed extenders[{number}].{key}, before and now: {shown}"
        return
    listed.append(dict(ours))
    yield f"added extenders[{len(listed) - 1}]: {ours['urlPrefix']}"
