"""``make release``: write everything that registries and package indexes need to one folder."""

import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from typing import Final

import click

from localcluster.errors import LocalClusterError, UsageError
from localcluster.run import run
from release import archives, chart, checksums, image, krew, sbom

ROOT: Final = Path(__file__).parents[1]
PLATFORMS: Final = ("linux/amd64", "linux/arm64")
PUBLISH: Final = """
To publish, after logging in to the registry:
  skopeo copy --all oci-archive:{folder}/{image} docker://{registry}/gpushare:{version}
  helm push {folder}/gpushare-{version}.tgz oci://{charts}
Put the archives at {url}, where gpushare.yaml names them.
To install:
  helm install gpushare oci://{charts}/gpushare -n gpushare-system --create-namespace"""


# A host with an optional port, and a path, as in the name of an image.
_REGISTRY: Final = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*")


def _checked(_ctx: click.Context, _option: click.Parameter, name: str) -> str:
    if not _REGISTRY.fullmatch(name):
        raise click.BadParameter(f"{name!r}: write a host and a path, as registry.example.com/team")
    return name


def _checked_url(_ctx: click.Context, _option: click.Parameter, url: str) -> str:
    if not url.startswith("https://"):
        raise click.BadParameter(
            f"{url!r}: write where users will download the archives (URL=), such as "
            "https://example.com/gpushare/0.1.0"
        )
    return url.rstrip("/")


@click.command(context_settings={"show_default": True})
@click.option(
    "--registry",
    required=True,
    callback=_checked,
    metavar="NAME",
    help="For example registry.example.com/team.",
)
@click.option(
    "--url",
    required=True,
    callback=_checked_url,
    metavar="URL",
    help="Where users will download the archives.",
)
@click.option("--platforms", default=",".join(PLATFORMS), metavar="LIST", help="Of the image.")
@click.option(
    "--base-image", default=image.BASE, metavar="NAME", help="{arch} stands for amd64 or arm64."
)
@click.option("--build-flags", default="", metavar="FLAGS", help="More flags for `buildah build`.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default="dist",
    help="The last release in it is removed.",
)
def command(  # noqa: PLR0917 - click passes them by name
    registry: str, url: str, platforms: str, base_image: str, build_flags: str, folder: Path
) -> None:
    """Write the files of a release, and print how to publish them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    if missing := [each for each in ("buildah", "git", "helm") if shutil.which(each) is None]:
        raise UsageError(
            f"not found in PATH: {', '.join(missing)}; docs/dev/release.md says what it needs"
        )
    checksums.check(folder)
    say = partial(click.echo, err=True)
    made = image.Image(registry, version, base_image, tuple(shlex.split(build_flags)))
    with tempfile.TemporaryDirectory(prefix="gpushare-release-") as scratch:
        partial_folder = Path(scratch) / "dist"
        partial_folder.mkdir()
        say("writing wheel and sdist ...")
        run(["uv", "build", "--quiet", "--out-dir", partial_folder, ROOT], seconds=300)
        (partial_folder / ".gitignore").unlink(missing_ok=True)  # uv writes it
        say("writing the chart ...")
        chart.write(partial_folder, version=version, repository=f"{made.registry}/gpushare")
        say("writing the command line for krew ...")
        packed = archives.write(partial_folder, version=version)
        krew.write(partial_folder, project, packed, url=url)
        say(f"building the image for {platforms} ...")
        written = image.write(partial_folder, made, platforms.split(","))
        sbom.write(partial_folder, written, version=version)
        checksums.write(partial_folder)
        checksums.forget(folder)
        shutil.copytree(partial_folder, folder, dirs_exist_ok=True)
    for each in sorted(folder.iterdir()):
        click.echo(f"{each.stat().st_size / 1e6:8.1f} MB  {each}")
    click.echo(
        PUBLISH.format(
            folder=folder,
            image=written.name,
            registry=made.registry,
            version=version,
            charts=f"{made.registry}/charts",
            url=url,
        )
    )


if __name__ == "__main__":
    try:
        command()
    except LocalClusterError as problem:
        sys.exit(f"release: {problem}")
