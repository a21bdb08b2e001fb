"""Release the pods that wait behind gpushare's scheduling gate."""

from http import HTTPStatus
from typing import Final

from gpushare.errors import ApiError, Conflict, NotFound
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import pods
from gpushare.objects.model import Pod
from gpusharectl.reach.at_once import each_of
from gpusharectl.uninstall import rules

# In the API server's text of a rejection, for some seconds after the policy's deletion.
POLICY: Final = "ValidatingAdmissionPolicy"


async def release(kube: Kube) -> str:
    """Release all gated pods once; return which of them still wait and why, or nothing.

    Call it until it returns nothing.
    """
    unbound = await list_all(kube, pods(field_selector="spec.nodeName="), Pod)
    found = {pod.key: pod for pod in rules.gated(unbound)}

    async def ask(key: str) -> str:
        return await _release(kube, found[key])

    why = await each_of(found, ask)
    return "; ".join(f"{key}: {text}" for key, text in sorted(why.items()) if text)[:1000]


async def _release(kube: Kube, pod: Pod) -> str:
    meta = pod.metadata
    try:
        await kube.patch_pod(meta.namespace, meta.name, rules.ungating(pod))
    except NotFound:
        return ""
    except Conflict as err:
        return str(err)  # the next list shows what is there now
    except ApiError as err:
        if err.code == HTTPStatus.UNPROCESSABLE_ENTITY and POLICY in str(err):
            return str(err)
        raise
    return ""
