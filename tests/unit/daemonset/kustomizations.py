"""The kustomizations of ``daemonset/``, and those that a user writes with them."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
BASE = "daemonset/base"
SECOND = "daemonset/overlays/second-scheduler"


def _folders(which: str) -> list[str]:
    found = ROOT.glob(f"daemonset/{which}/*/kustomization.yaml")
    return sorted(str(path.parent.relative_to(ROOT)) for path in found)


OVERLAYS = _folders("overlays")
COMPONENTS = _folders("components")
PLATFORMS = _folders("platforms")
EVERY = [BASE, *OVERLAYS, *COMPONENTS]


def own(*components: str, resource: str = BASE) -> str:
    """Return a user's kustomization with these components, in a checkout."""
    return yaml.safe_dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"../{resource}"],
            "components": [f"../daemonset/components/{name}" for name in components],
        }
    )


def unlabelled(objects: list[dict[str, Any]]) -> list[str]:
    """Return the objects that lack a recommended label, or whose pods do."""
    wanted = {"app.kubernetes.io/part-of": "gpushare", "app.kubernetes.io/managed-by": "kustomize"}
    own = {"app.kubernetes.io/name", "app.kubernetes.io/component"}
    found = []
    for each in objects:
        template = each.get("spec", {}).get("template")
        for metadata in (each["metadata"], *([template["metadata"]] if template else ())):
            labels = metadata.get("labels", {})
            if not (own <= labels.keys() and wanted.items() <= labels.items()):
                found.append(f"{each['kind']} {each['metadata']['name']}")
    return found
