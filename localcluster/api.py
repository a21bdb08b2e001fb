"""A small client of the API server, with the administrator's certificate."""

import http.client
import json
import ssl
from typing import Any, Self

from localcluster.errors import ApiError
from localcluster.network import API_PORT
from localcluster.state import StateFolder
from localcluster.wait import patient

_OK = range(200, 300)


class Api:
    """One connection that stays open. It must not be used by several threads at once.

    Every request raises ApiError: with the server's own message if it is refused, with status 0 if
    no answer came.
    """

    def __init__(self, state: StateFolder, host: str, *, seconds: float = 10) -> None:
        pki = state.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._connection = http.client.HTTPSConnection(
            host, API_PORT, timeout=patient(seconds), context=context
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self, path: str) -> Any:
        """Return the decoded answer to a GET."""
        return self.request("GET", path)

    def request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Any:
        """Return the decoded answer, or its text if it is not JSON."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        sent = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, path, sent, headers)
            answer = self._connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as problem:
            self._connection.close()
            raise ApiError(0, f"{method} {path}: no answer: {problem}") from problem
        try:
            found = json.loads(text)
        except ValueError:
            found = text
        if answer.status not in _OK:
            message = found.get("message", text) if isinstance(found, dict) else text
            raise ApiError(answer.status, f"{method} {path}: {answer.status}: {message}")
        return found
