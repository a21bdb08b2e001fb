"""The kustomizations of ``daemonset/``, and those that a user writes with them."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
BASE = "daemonset/base"
SECOND = "daemonset/overlays/second-scheduler"


def _folders(which: str) -> list[str]:
    found = ROOT.glob(f"daemonset/{which}/*/kustomization.yaml")
    return sorted(str(path.parent.relative_to(ROOT)) for path in found)


OVERLAYS = _folders("overlays")
COMPONENTS = _folders("components")
EVERY = [BASE, *OVERLAYS, *COMPONENTS]


def own(*components: str, resource: str = BASE) -> str:
    """Return a user's kustomization with these components, next to a checkout named gpushare."""
    return yaml.safe_dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"../gpushare/{resource}"],
            "components": [f"../gpushare/daemonset/components/{name}" for name in components],
        }
    )
