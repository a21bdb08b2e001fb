"""The image for several architectures, as one OCI archive, built by buildah without emulation.

Every command of the Dockerfile runs on this machine's architecture (docs/dev/release.md).
"""

import datetime as dt
import platform
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster.errors import CommandError, UsageError
from localcluster.run import run

ROOT: Final = Path(__file__).parents[1]
BASE: Final = "docker.io/library/python:3.13-slim-bookworm"
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # what uname says, to OCI's names
_SECONDS: Final = 3600.0
_FLAGS: Final = ("--isolation=chroot", "--network=host", "--layers")


@dataclass(frozen=True)
class Image:
    """``base`` may contain ``{arch}``, which stands for amd64 or arm64."""

    registry: str
    version: str
    base: str = BASE
    build_flags: tuple[str, ...] = ()


def write(folder: Path, image: Image, platforms: Sequence[str]) -> Path:
    """Build the image for each of ``platforms`` (linux/amd64, linux/arm64); return the archive.

    Raises UsageError for an unknown platform, CommandError with the end of buildah's output.
    """
    known = [f"linux/{arch}" for arch in MACHINES.values()]
    if unknown := sorted(set(platforms) - set(known)):
        text = f"no image can be built for {', '.join(unknown)}: choose of {', '.join(known)}"
        raise UsageError(text)
    archive = folder / f"gpushare-image-{image.version}.tar"
    with _manifest_list() as name:
        for each in platforms:
            run([*_build(image, each), f"--manifest={name}", ROOT], seconds=_SECONDS)
        target = f"oci-archive:{archive}:{image.registry}/gpushare:{image.version}"
        run(["buildah", "manifest", "push", "--quiet", "--all", name, target], seconds=_SECONDS)
    return archive


def _build(image: Image, wanted: str) -> list[str]:
    machine = MACHINES.get(platform.machine())
    if machine is None:
        text = f"this machine is a {platform.machine()}: build the image on amd64 or arm64"
        raise UsageError(text)
    arguments = {
        "BUILDPLATFORM": f"linux/{machine}",
        "TARGETPLATFORM": wanted,
        "BUILDER_IMAGE": image.base.format(arch=machine),
        "BASE_IMAGE": image.base.format(arch=wanted.removeprefix("linux/")),
        "VERSION": image.version,
    }
    labels = {
        "revision": run(["git", "-C", ROOT, "rev-parse", "HEAD"]).strip(),
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    return [
        *("buildah", "build", "--quiet", f"--platform={wanted}", *_FLAGS, *image.build_flags),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *(f"--label=org.opencontainers.image.{name}={value}" for name, value in labels.items()),
    ]


@contextmanager
def _manifest_list() -> Iterator[str]:
    """Give a new manifest list, and remove it with the images that nothing else names."""
    name = f"localhost/gpushare-release:{uuid.uuid4().hex[:12]}"
    try:
        run(["buildah", "manifest", "create", name])
    except CommandError as problem:
        text = f"{problem}; `make release` needs buildah (on Debian: apt-get install buildah)"
        raise CommandError(text) from problem
    try:
        yield name
    finally:
        run(["buildah", "manifest", "rm", name])
