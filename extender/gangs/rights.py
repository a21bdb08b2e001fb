"""Finds out whether this extender may patch pods, as the component for gates lets it."""

import logging
from typing import Final

import msgspec

from gpushare.clock import Clock
from gpushare.errors import ApiError
from gpushare.kube import responses
from gpushare.kube.client import Kube

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 60.0
MISSING_SECONDS: Final = 5.0  # the component may have just been applied
_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_QUESTION: Final = {
    "apiVersion": "authorization.k8s.io/v1",
    "kind": "SelfSubjectAccessReview",
    "spec": {"resourceAttributes": {"verb": "patch", "resource": "pods"}},
}


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


_decode: Final = msgspec.json.Decoder(_Review).decode


class PatchRight:
    """Asks the API server once a minute, and more often while the right is missing."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube, self._clock = kube, clock
        self._asked_at = float("-inf")
        self._is_given = self._is_doubtful = False
        self.is_denied = False  # the API server has said so

    async def is_given(self) -> bool:
        """Return whether pods may be patched; False until the API server has said so."""
        now = self._clock.monotonic()
        is_sure = self._is_given and not self._is_doubtful
        if now - self._asked_at < (EVERY_SECONDS if is_sure else MISSING_SECONDS):
            return self._is_given
        self._asked_at, self._is_doubtful = now, False
        try:
            answer = await self._kube.request("POST", _PATH, body=_QUESTION)
            self._is_given = responses.decode(_decode, answer).status.allowed
            self.is_denied = not self._is_given
        except ApiError as err:
            log.warning("the right to patch pods is unknown", extra={"why": str(err)})
        return self._is_given

    def doubt(self) -> None:
        """Ask again soon: the API server has rejected a patch."""
        self._is_doubtful = True
