"""Answers of vLLM's own routes, bound to the version that the gate asked for.

Law: an answer that bears the header `X-Skerry-Weights` was made by the weights that it names from
its first byte to its last; one during which they changed is broken off.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Skerry-Weights"
_KEY = HEADER.lower().encode()


def weights_name(instance: str, version: int) -> str:
    """Name a version in one process of a server: another process may hold anything."""
    return f"{instance} {version}"


class WeightsGuard:
    """ASGI middleware; `serves` names what is served now, None for nothing that has a name."""

    def __init__(self, app: ASGIApp, *, serves: Callable[[], str | None]) -> None:
        self._app = app
        self._serves = serves

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = [v.decode("latin-1") for k, v in scope.get("headers", ()) if k == _KEY]
        if scope["type"] != "http" or not asked:
            await self._app(scope, receive, send)
            return
        if len(asked) != 1 or asked[0] != self._serves():
            await _refuse(send, f"expected {self._serves()}, found {', '.join(asked)}")
            return

        async def guarded(message: Message) -> None:
            if asked[0] != self._serves():
                raise RuntimeError(f"the weights {asked[0]} were changed under an answer")
            if message["type"] == "http.response.start":
                named = (_KEY, asked[0].encode("latin-1"))
                message = {**message, "headers": [*message.get("headers", ()), named]}
            await send(message)

        await self._app(scope, receive, guarded)


async def _refuse(send: Send, why: str) -> None:
    body = json.dumps({"error": {"type": "WeightsChanged", "message": f"{HEADER}: {why}"}})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})
