"""Pages of the device plugins, by the API server's own proxy.

That takes ``get pods/proxy``, which is less than a port-forward: it reaches no loopback, so nothing
that decides.
"""

from gpushare.errors import ApiError
from gpushare.kube.client import Kube
from gpushare.kube.paths import pod_path
from gpusharectl.reach.rights import Right, named


def before_reasons(namespace: str, pod: str) -> str:
    """What the reasons come after in the error that /readyz of a plugin ends with."""
    return f"GET {_path(namespace, pod)}/readyz: 503 : "


async def plugin_page(kube: Kube, namespace: str, pod: str, page: str) -> bytes:
    """A page by its path, as /metrics. ApiError, which names the right where it is missing."""
    try:
        # Without a port the API server takes the only one that the pod declares.
        return await kube.request("GET", _path(namespace, pod) + page)
    except ApiError as err:
        raise named(err, Right("get", "pods/proxy", namespace)) from err


def _path(namespace: str, pod: str) -> str:
    return pod_path(namespace, pod) + "/proxy"
