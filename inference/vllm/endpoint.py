"""`/skerry/v1/...` in vLLM's API server: an endpoint plug-in, which needs no dev mode.

Who calls has to know the token in the exchange directory, which `SKERRY_ENGINE_DIR` names.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GenerationRequest,
    InstallFailed,
    RequestUnsupported,
)
from skerry.inference.exchange import VARIABLE, Exchange
from skerry.inference.transport import left_before, read_body
from skerry.inference.vllm import wire
from skerry.inference.vllm.account import keep_accounts
from skerry.inference.vllm.core import AsyncCore, Pieces
from skerry.inference.vllm.front import Front
from skerry.inference.vllm.guard import WeightsGuard
from skerry.inference.vllm.weights import Weights

logger = logging.getLogger(__name__)

_MAX_CONTROL_BYTES = 64 * 1024
_MAX_REQUEST_BYTES = 16 << 20
_STATUS: Mapping[type[EngineError], int] = {
    InstallFailed: 409,
    RequestUnsupported: 422,
    EngineBroken: 503,
}
Handler = Callable[[Mapping[str, Any]], Awaitable[object]]


class SkerryEndpoint:
    """See vLLM's `EndpointPlugin`, which this class implements."""

    name = "skerry"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._front: Front | None = None
        self._token = ""
        self._refusal = "the engine has not started"

    def attach_router(self, app: FastAPI) -> None:
        routes: dict[str, Handler] = {
            "load": self._load,
            "stage": self._stage,
            "install": self._install,
            "undo": self._undo,
            "resume": self._resume,
            "read-back": self._read_back,
            "compare": self._compare,
        }
        for name, handler in routes.items():
            app.add_api_route(f"/skerry/v1/{name}", self._post(handler), methods=["POST"])
        pause = self._post(self._pause, on_left=self._call_off)
        app.add_api_route("/skerry/v1/pause", pause, methods=["POST"])
        app.add_api_route("/skerry/v1/state", self._state, methods=["GET"])
        app.add_api_route("/skerry/v1/generate", self._generate, methods=["POST"])
        app.add_middleware(WeightsGuard, serves=self._serves)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        root = os.environ.get(VARIABLE)
        core = AsyncCore(engine_client)
        if not root:
            self._refusal = f"{VARIABLE} names no directory"
        elif getattr(args, "api_server_count", 1) not in (None, 1):
            self._refusal = "with several API servers no one of them knows all requests"
        elif core.parallel.data_parallel_size > 1:
            self._refusal = "start one server per data-parallel rank"
        elif core.shares_encoders:
            self._refusal = "outputs of encoders that are kept elsewhere have no version"
        else:
            keep_accounts(engine_client)
            exchange = Exchange.open(Path(root))
            self._token, self._front = exchange.token(), Front(core, exchange)
            return
        logger.warning("weights cannot be updated: %s", self._refusal)

    def _post(
        self, handler: Handler, *, on_left: Callable[[], Awaitable[None]] | None = None
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the route of one call; `on_left` is what becomes of it if the caller leaves."""

        async def route(request: Request) -> Response:
            refused = self._refused(request)
            if refused is not None:
                return refused
            try:
                body = wire.parse_object(await read_body(request, _MAX_CONTROL_BYTES))
                # Not cancelled with the connection: a change that has begun is finished.
                work = asyncio.ensure_future(handler(body))
                if on_left is not None and await left_before(request, _ended(work)):
                    await on_left()
                result = await asyncio.shield(work)
            except Exception as error:  # the boundary of one call
                return _error(error)
            return JSONResponse(result)

        return route

    async def _state(self, request: Request) -> Response:
        return self._refused(request) or JSONResponse(dataclasses.asdict(self._open.state()))

    async def _load(self, body: Mapping[str, Any]) -> object:
        directory, version = wire.text(body, "directory"), wire.whole(body, "version")
        await self._open.load(Path(directory), version, wire.text(body, "namespace", ""))
        return dataclasses.asdict(self._open.state())

    async def _stage(self, body: Mapping[str, Any]) -> object:
        return {"ranks": await self._open.stage(wire.text(body, "record"))}

    async def _pause(self, body: Mapping[str, Any]) -> object:
        await self._open.pause(wire.policy(body), wire.seconds(body, "lease_s"))
        return dataclasses.asdict(self._open.state())

    async def _call_off(self) -> None:
        """Nobody is there to resume after a pause that may take as long as requests do."""
        logger.warning("the agent left during a pause: resuming")
        await self._open.resume()

    async def _install(self, body: Mapping[str, Any]) -> object:
        scatter_s = await self._open.install(wire.whole(body, "version"))
        return {"scatter_s": scatter_s, **dataclasses.asdict(self._open.state())}

    async def _undo(self, body: Mapping[str, Any]) -> object:
        await self._open.undo(wire.whole(body, "version"))
        return dataclasses.asdict(self._open.state())

    async def _resume(self, body: Mapping[str, Any]) -> object:
        await self._open.resume()
        return dataclasses.asdict(self._open.state())

    async def _read_back(self, body: Mapping[str, Any]) -> object:
        return await self._open.read_back()

    async def _compare(self, body: Mapping[str, Any]) -> object:
        return {"ranks": await self._open.compare(Path(wire.text(body, "directory")))}

    async def _generate(self, request: Request) -> Response:
        refused = self._refused(request)
        if refused is not None:
            return refused
        try:
            asked = wire.parse_request(await read_body(request, _MAX_REQUEST_BYTES))
            pieces = self._open.generate(asked)
        except Exception as error:  # the boundary of one request
            return _error(error)
        return StreamingResponse(_lines(pieces, asked), media_type="application/x-ndjson")

    def _serves(self) -> Weights | None:
        state = None if self._front is None else self._front.state()
        if state is None or state.version is None:
            return None
        return Weights(state.install, state.version)

    @property
    def _open(self) -> Front:
        assert self._front is not None
        return self._front

    def _refused(self, request: Request) -> Response | None:
        if self._front is None:
            return JSONResponse(_shown("Unconfigured", self._refusal), status_code=403)
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not hmac.compare_digest(given.encode(), self._token.encode()):
            message = "expected Authorization: Bearer and the token in the exchange directory"
            return JSONResponse(_shown("TokenInvalid", message), status_code=401)
        return None


async def _ended(work: asyncio.Future[object]) -> None:
    await asyncio.wait([work])


async def _lines(pieces: Pieces, asked: GenerationRequest) -> AsyncIterator[str]:
    """Yield one line of JSON for each piece, and one for an error: the status is long sent."""
    try:
        async with aclosing(pieces) as made:
            async for piece in made:
                yield wire.piece_line(piece)
    except Exception as error:  # the boundary of one request
        logger.warning("a request of %d tokens ended early: %s", asked.max_tokens, error)
        yield json.dumps(_shown(type(error).__name__, str(error))) + "\n"


def _error(error: Exception) -> Response:
    status = next((s for kind, s in _STATUS.items() if isinstance(error, kind)), None)
    if status is None:
        status = getattr(error, "status", 400 if isinstance(error, ValueError) else 500)
    if status == 500:
        logger.error("a control call failed", exc_info=error)
    return JSONResponse(_shown(type(error).__name__, str(error)), status_code=status)


def _shown(kind: str, message: str) -> dict[str, object]:
    return {"error": {"type": kind, "message": message}}


__all__ = ["SkerryEndpoint"]
