"""Run `make release` as tests do: with bases of this machine's distribution, without a registry."""

import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from localcluster.build import Progress
from localcluster.errors import BuildError, CommandError
from localcluster.host import Need, provide
from localcluster.imagebuild import (
    APART,
    BASE,
    ROOT,
    content_key,
    gpushare_image,
    storage_driver,
    this_codename,
    trusted_certificates,
)
from localcluster.run import run
from localcluster.state import locked
from localcluster.tools import tool

OWN, OTHER = ("arm64", "amd64") if platform.machine() == "aarch64" else ("amd64", "arm64")
_MMDEBSTRAP: Final = Need("`mmdebstrap`", "mmdebstrap", lambda: bool(shutil.which("mmdebstrap")))
_BASES: Final = "localhost/gpushare-release-base"
_SECONDS: Final = 3600.0


def storage(say: Progress) -> Path:
    """Return the folder of images with which ``make`` is quick: a release was built there.

    That one is not kept: a release names the registry. The caches keep the bases, the packages of
    the image and those of the archives. Raises HostError, BuildError.
    """
    folder = gpushare_image(say).parent
    helm = tool("helm", say)
    provide((_MMDEBSTRAP,))
    sources = [ROOT / "Dockerfile", ROOT / "uv.lock", *(ROOT / "release").glob("*.py")]
    key = content_key({each.name: each.read_bytes() for each in sources})
    built = folder / f"release-{key}"
    with locked(folder / "release.lock"):
        if not built.exists():
            say("building a release, with the image for two architectures ...")
            started = time.monotonic()
            with tempfile.TemporaryDirectory() as scratch:
                make(Path(scratch), folder, helm, registry="registry.example.com/team")
            built.touch()
            say(f"built a release in {time.monotonic() - started:.0f} s")
    return folder


def make(folder: Path, storage: Path, helm: Path, *, registry: str) -> None:
    """Run `make release` into ``dist`` below a folder, with the cache of images; BuildError."""
    conf = folder / "storage.conf"
    places = f'graphroot = "{storage}/storage"\nrunroot = "{storage}/run"\n'
    conf.write_text(f'[storage]\ndriver = "{storage_driver(storage)}"\n{places}')
    env = {
        **os.environ,
        "CONTAINERS_STORAGE_CONF": str(conf),
        "PATH": f"{helm.parent}:{os.environ['PATH']}",
    }
    words = [
        f"REGISTRY={registry}",
        "URL=https://downloads.example.com/gpushare",
        f"BASE_IMAGE={_BASES}:{{arch}}",
        f"BUILD_FLAGS=--pull-never {' '.join(trusted_certificates())}",
        f"RELEASE_FLAGS=--folder {folder}/dist",
    ]
    try:
        with locked(storage / "build.lock"):
            run([*APART, "bash", "-ec", _bases(folder)], env=env, seconds=_SECONDS)
            run([*APART, "make", "release", *words], env=env, cwd=ROOT, seconds=_SECONDS)
    except CommandError as problem:
        raise BuildError(f"a release could not be built: {problem}") from problem


def _bases(folder: Path) -> str:
    """Return commands that provide a base for each architecture.

    The base of the other one is only unpacked: nothing of it runs here.
    """
    suite, archive = this_codename(), folder / "base.tar"
    return rf"""
      buildah tag {BASE}:{suite} {_BASES}:{OWN}
      buildah inspect --type image {_BASES}:{OTHER} >/dev/null 2>&1 && exit
      mmdebstrap --quiet --variant=extract --architectures={OTHER} --include=python3 \
        {suite} {archive}
      container=$(buildah from --arch {OTHER} scratch)
      buildah add --quiet $container {archive} /
      buildah config --arch {OTHER} $container
      buildah commit --quiet --rm $container {_BASES}:{OTHER}
    """
