"""Answers of vLLM's own routes, bound to the version that the gate asked for, and saying so.

Law: an answer that bears the header `X-Skerry-Weights` was made by the weights that it names from
its first byte to its last, and tells the version of every token; one during which they changed is
broken off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry.inference.opaque import Front, ends_stream, told, with_event
from skerry.inference.vllm.account import Account, AccountWrong, current
from skerry.inference.vllm.weights import HEADER, Weights

_KEY = HEADER.lower().encode()
_KINDS: Mapping[bytes, Literal["object", "stream"]] = {
    b"application/json": "object",
    b"text/event-stream": "stream",
}


class WeightsGuard:
    """ASGI middleware; `serves` says what is served now, None for nothing that has a name."""

    def __init__(self, app: ASGIApp, *, serves: Callable[[], Weights | None]) -> None:
        self._app = app
        self._serves = serves

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = [v.decode("latin-1") for k, v in scope.get("headers", ()) if k == _KEY]
        if scope["type"] != "http" or not asked:
            await self._app(scope, receive, send)
            return
        weights = self._serves()
        if weights is None or asked != [weights.name]:
            found = None if weights is None else weights.name
            await _refuse(send, f"expected {found}, found {', '.join(asked)}")
            return
        answer, begun, refused = (
            _Answer(weights, Account(), chat="/chat/" in scope["path"]),
            False,
            False,
        )

        async def guarded(message: Message) -> None:
            nonlocal begun, refused
            if refused:
                return
            try:
                if self._serves() != weights:
                    raise AccountWrong(f"the weights {weights.name} were changed under an answer")
                bound = answer.bound(message)
            except AccountWrong as error:
                if begun:
                    raise  # it is under way, and is broken off
                refused = True
                await _refuse(send, str(error))
                return
            for ready in bound:
                begun = True
                await send(ready)

        token = current.set(answer.account)
        try:
            await self._app(scope, receive, guarded)
        finally:
            current.reset(token)


class _Answer:
    """One answer on its way, by `weights`, and the account of its tokens."""

    def __init__(self, weights: Weights, account: Account, *, chat: bool) -> None:
        self.account = account
        self._weights = weights
        self._chat = chat
        self._kind: Literal["object", "stream"] | None = None
        self._front = Front({})
        self._held: Message | None = None  # the start of an object, until its length is known
        self._ended = False

    def bound(self, message: Message) -> list[Message]:
        """Return what to send for a message, with what it has to say of the weights.

        Raises AccountWrong.
        """
        if message["type"] == "http.response.start":
            return self._start(message)
        if message["type"] == "http.response.body" and self._kind is not None:
            body, more = message.get("body", b""), message.get("more_body", False)
            if self._kind == "stream":
                return [{**message, "body": self._event(body, more=more)}]
            ready = self._front.push(body) + (b"" if more else self._front.rest())
            return [*self._release(None if more else len(ready)), {**message, "body": ready}]
        return [message]

    def _start(self, message: Message) -> list[Message]:
        headers = [*message.get("headers", ()), (_KEY, self._weights.name.encode("latin-1"))]
        message = {**message, "headers": headers}
        if message["status"] != 200:
            return [message]
        stated = next((v for k, v in headers if k.lower() == b"content-type"), b"")
        self._kind = _KINDS.get(stated.partition(b";")[0].strip().lower())
        if self._kind is None:
            raise AccountWrong(f"expected JSON or events, found {stated!r:.80}")
        if self._kind == "stream":
            return [message]
        spans = self.account.spans(self._weights.version)
        if spans is None:
            raise AccountWrong("an answer before all of its tokens")
        self._front = Front(told(self._weights.version, spans))
        self._held = message
        return []

    def _release(self, length: int | None) -> list[Message]:
        """Return the start that was held, with the length of the body, where it is known."""
        held, self._held = self._held, None
        if held is None:
            return []
        headers = [(k, v) for k, v in held["headers"] if k.lower() != b"content-length"]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        return [{**held, "headers": headers}]

    def _event(self, body: bytes, *, more: bool) -> bytes:
        if ends_stream(body):
            self._ended = True
            spans = self.account.spans(self._weights.version)
            if spans is not None:  # else it ends with an error of the engine's own
                said = told(self._weights.version, spans)
                return with_event(body, {**self._head(), "choices": [], **said})
        elif not more and not self._ended:
            raise AccountWrong("a stream without its last event")
        return body

    def _head(self) -> dict[str, object]:
        """Return what readers of such a stream want to find in each event."""
        if not self._chat:
            return {"request_id": self.account.request_id}
        return {
            "id": self.account.request_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self.account.model,
        }


async def _refuse(send: Send, why: str) -> None:
    body = json.dumps({"error": {"type": "WeightsChanged", "message": f"{HEADER}: {why}"}})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})
