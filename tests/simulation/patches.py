"""The strategic merge patches of pods that the extender sends, as the API server applies them."""

from collections.abc import Mapping
from typing import Any

from tests.simulation.store import Object, edited, gates_of


def patched(pod: Object, patch: Mapping[str, Any], part: str) -> Object:
    """Return the pod after a patch, of its ``part`` status or of the rest."""
    after = edited(pod)
    after["metadata"]["annotations"] |= patch["metadata"].get("annotations") or {}
    if part == "status":
        for name, value in patch["status"].items():
            if value is None:
                after["status"].pop(name, None)
            else:
                after["status"][name] = value
        return after
    spec = patch.get("spec") or {}
    removed = {gate["name"] for gate in spec.get("schedulingGates") or ()}
    kept = [{"name": name} for name in gates_of(pod) if name not in removed]
    after["spec"]["schedulingGates"] = kept
    return after
