"""The cluster's own images, written as one OCI archive of static binaries."""

import hashlib
import io
import json
import platform
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKLOAD = "gpushare.local/workload:1"
CUDA_WORKLOAD = "gpushare.local/cuda-workload:1"
GREEDY_WORKLOAD = "gpushare.local/greedy-workload:1"
PAUSE = "gpushare.local/pause:1"
SCHEDULER = "registry.k8s.io/kube-scheduler"

CUDA_ENVIRONMENT = (
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVIDIA_REQUIRE_CUDA=cuda>=12.6",
    "CUDA_VERSION=12.6.2",
)
"""What every image of CUDA has in its configuration."""

GREEDY_ENVIRONMENT = ("NVIDIA_GPU_MEMORY_REQUEST=3000", "NVIDIA_GPU_MEMORY_LIMIT=16000")
"""What an image has that wants more memory of a GPU than its pod asks for."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An image that holds one static binary in `folder`, which is its entrypoint."""

    name: str
    binary: Path
    folder: str = ""
    environment: tuple[str, ...] = ()


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


class _Blobs:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def add(self, kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, kind: str, document: dict[str, Any]) -> dict[str, Any]:
        return self.add(f"{kind}.v1+json", json.dumps(document, sort_keys=True).encode())


def archive(images: list[Image]) -> bytes:
    """Return an OCI archive of `images`; the same input gives the same bytes."""
    blobs = _Blobs()
    manifests = []
    for image in images:
        # Where a manifest names the command without its place.
        path = [f"PATH=/{image.folder}"] if image.folder else []
        environment = {"Env": [*path, *image.environment]} if path or image.environment else {}
        command = f"{image.folder}{image.binary.name}"
        layer = _tar({command: image.binary.read_bytes()}, mode=0o755)
        machine = platform.machine()
        config = {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Entrypoint": [f"/{command}"], **environment},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blobs.add_json("config", config),
            "layers": [blobs.add("layer.v1.tar", layer)],
        }
        described = blobs.add_json("manifest", manifest)
        # The first is read by containerd, the second by buildah.
        keys = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
        manifests.append({**described, "annotations": dict.fromkeys(keys, image.name)})
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }
    layout = {"imageLayoutVersion": "1.0.0"}
    top = {"oci-layout": json.dumps(layout).encode(), "index.json": json.dumps(index).encode()}
    return _tar({**top, **blobs.files}, mode=0o644)
