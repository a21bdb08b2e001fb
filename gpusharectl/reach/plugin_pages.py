"""Get pages of the device plugins through the API server's proxy.

That needs the right ``get pods/proxy``, which is weaker than a port-forward: it does not reach
loopback interfaces, so nothing that makes decisions.
"""

from typing import Final

from gpushare.kube.client import Kube
from gpushare.kube.paths import pod_path
from gpushare.objects.model import Pod
from gpusharectl.reach.rights import Right, needing

PLUGIN: Final = "gpushare-deviceplugin"


def is_plugin(pod: Pod) -> bool:
    return pod.labels.get("app.kubernetes.io/name") == PLUGIN and not pod.is_terminal


def before_reasons(namespace: str, pod: str) -> str:
    """Return what precedes the reasons in the error that a plugin's /readyz causes."""
    return f"GET {_path(namespace, pod)}/readyz: 503 : "


async def plugin_page(kube: Kube, namespace: str, pod: str, page: str) -> bytes:
    """Get a page by its path, such as /metrics. ApiError, which names a missing right."""
    with needing(Right("get", "pods/proxy", namespace)):
        # Without a port the API server uses the only one that the pod declares.
        return await kube.request("GET", _path(namespace, pod) + page)


def _path(namespace: str, pod: str) -> str:
    return pod_path(namespace, pod) + "/proxy"
