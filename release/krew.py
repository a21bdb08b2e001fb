"""krew's manifest of the kubectl plugin (krew.sigs.k8s.io/docs/developer-guide/plugin-manifest)."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from release.archives import PROGRAM, PYTHONS


def write(
    folder: Path,
    project: Mapping[str, Any],
    packed: Mapping[tuple[str, str], Path],
    *,
    url: str,
) -> Path:
    """Write ``gpushare.yaml`` for the ``packed`` archives, to be downloaded below ``url``."""
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gpushare"},
        "spec": {
            "version": f"v{project['version']}",
            "homepage": project["urls"]["Homepage"],
            "shortDescription": "Show, explain and manage shared GPUs",
            "description": (
                "Shows which pod uses how much of which GPU, explains why a pod is Pending, "
                "checks an installation, and simulates placements without a cluster."
            ),
            "caveats": f"This plugin needs python3 {PYTHONS[0]} to {PYTHONS[-1]} in PATH.",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": system, "arch": machine}},
                    "uri": f"{url}/{archive.name}",
                    "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                    "bin": PROGRAM,
                }
                for (system, machine), archive in packed.items()
            ],
        },
    }
    path = folder / "gpushare.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path
