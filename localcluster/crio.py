"""The configuration of a CRI-O node, and the images that all such nodes share."""

import json
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from localcluster.errors import BuildError, CommandError
from localcluster.images import PAUSE
from localcluster.nodefiles import CARDS, snapshotter_for
from localcluster.run import run

SOCKET: Final = "/run/crio/crio.sock"
_IMPORT_SECONDS: Final = 300.0
_POLICY: Final = json.dumps({"default": [{"type": "insecureAcceptAnything"}]})

_RUNC: Final = """\
#!/bin/sh
# runc fails to lower an OOM score without CAP_SYS_RESOURCE, and to limit huge pages without their
# cgroup controller. containerd has switches for such machines, CRI-O has none.
bundle=
for word in "$@"; do
  if [ "$bundle" = next ]; then bundle=$word; break; fi
  case "$word" in --bundle|-b) bundle=next ;; esac
done
if [ -f "$bundle/config.json" ]; then
  own=$(cat /proc/self/oom_score_adj)
  sed -z -i "s/\\"oomScoreAdj\\": *-[0-9]*/\\"oomScoreAdj\\":$own/
    s/\\"hugepageLimits\\": *\\[[^]]*\\]/\\"hugepageLimits\\":[]/" "$bundle/config.json"
fi
exec {runc} "$@"
"""


def runc_script(runc: Path) -> str:
    """Return a program that runs `runc` without OOM scores and limits, which may fail here."""
    return _RUNC.replace("{runc}", shlex.quote(str(runc)))


def files(
    *,
    folder: Path,
    binaries: Path,
    pinns: Path,
    images: Path,
    handlers: Mapping[str, Path],
    default_handler: str = "runc",
) -> dict[str, str]:
    """Return the content of the files in `crio` below `folder`, the node's folder, by name.

    `images` is the result of `unpack`. `handlers` are the programs of the node's runtimes;
    `default_handler` is for pods without a RuntimeClass.
    """
    driver = _driver(folder)
    storage = f'[storage]\ndriver = "{driver}"\n'
    storage += f'graphroot = "{folder}/storage"\nrunroot = "/run/containers/storage"\n'
    tables = "".join(
        f"""
[crio.runtime.runtimes.{name}]
runtime_path = "{program}"
runtime_root = "/run/runc"
monitor_cgroup = "pod"
"""
        for name, program in handlers.items()
    )
    config = f"""\
[crio]
root = "{folder}/storage"
runroot = "/run/containers/storage"
storage_driver = "{driver}"
storage_option = ["{driver}.imagestore={images}"]
log_dir = "/var/log/crio/pods"
version_file = "/run/crio/version"
clean_shutdown_file = "{folder}/storage/clean.shutdown"

[crio.api]
listen = "{SOCKET}"

[crio.image]
pause_image = "{PAUSE}"
signature_policy = "{folder}/crio/policy.json"

[crio.network]
network_dir = "{folder}/cni.d"
plugin_dirs = ["{binaries}"]

[crio.nri]
enable_nri = false

[crio.runtime]
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
cgroup_manager = "cgroupfs"
default_runtime = "{default_handler}"
disable_hostport_mapping = true
hooks_dir = []
namespaces_dir = "/run/crio/ns"
default_mounts_file = "{folder}/crio/mounts.conf"
pinns_path = "{pinns}"
{tables}"""
    return {
        "crio.conf": config,
        "storage.conf": storage,
        "policy.json": _POLICY,
        # As containerd has it: an image without a registry is one of docker.io's.
        "registries.conf": 'unqualified-search-registries = ["docker.io"]\n',
        # What containers of NVIDIA's runtimes begin with on containerd. CRI-O copies the file.
        "mounts.conf": f"{folder}/nvml:{CARDS}\n",
    }


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that keep CRI-O from reading the host's own files."""
    return {
        "CONTAINER_REGISTRIES_CONF": f"{folder}/crio/registries.conf",
        "CONTAINER_REGISTRIES_CONF_DIR": f"{folder}/crio/registries.conf.d",
        "CONTAINERS_STORAGE_CONF": f"{folder}/crio/storage.conf",
    }


def _driver(folder: Path) -> str:
    """Return the storage driver for `folder`: an overlay cannot be on top of an overlay."""
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return "overlay" if snapshotter_for(folder, mountinfo) == "overlayfs" else "vfs"


def unpack(folder: Path, archives: Sequence[Path]) -> None:
    """Make `folder` the store of these archives' images, which every CRI-O node reads.

    Raises BuildError.
    """
    folder.mkdir(parents=True)
    policy = folder / "policy.json"
    policy.write_text(_POLICY, encoding="utf-8")
    # buildah leaves mounts of its storage behind; in a namespace of its own they end with it.
    words = ["unshare", "--mount", "--propagation", "private", "buildah", f"--root={folder}"]
    words += [f"--runroot={folder}/run", f"--storage-driver={_driver(folder)}", "pull"]
    words += ["--quiet", f"--signature-policy={policy}"]
    try:
        for source in (each for archive in archives for each in sources(archive)):
            run([*words, source], seconds=_IMPORT_SECONDS)
    except CommandError as problem:
        raise BuildError(f"the images could not be unpacked for CRI-O: {problem}") from problem


def sources(archive: Path) -> list[str]:
    """Return the names of an archive's images for `buildah pull`, in OCI's or Docker's layout."""
    with tarfile.open(archive) as opened:
        if "oci-layout" in opened.getnames():
            key = "org.opencontainers.image.ref.name"
            manifests = _json(opened, "index.json")["manifests"]
            return [f"oci-archive:{archive}:{each['annotations'][key]}" for each in manifests]
        manifests = _json(opened, "manifest.json")
        return [f"docker-archive:{archive}:{tag}" for each in manifests for tag in each["RepoTags"]]


def _json(archive: tarfile.TarFile, name: str) -> Any:
    found = archive.extractfile(name)
    if found is None:
        raise BuildError(f"an image archive has {name} as a folder; build the archive again")
    return json.load(found)
