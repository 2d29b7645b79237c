"""An engine that is a process of its own, and the agent's side of it.

Every token is a function of the hash of the engine's weights and says when it was made, by the
machine's monotonic clock: whatever anybody claims about versions can be held against that.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from skerry.codec.digest import Digest, digest_bytes
from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    WeightUpdate,
)
from skerry.inference.exchange import Exchange
from tests.island_agent.engines import ByteEngine

VOCABULARY = 100_000
_TOKEN_S = 0.005
_LOOK_S = 0.05
_ERRORS: dict[str, type[EngineError]] = {
    kind.__name__: kind for kind in (InstallFailed, EngineBroken, EngineError)
}


def token_of(weights: Digest) -> int:
    """Return the token that these weights make, everywhere."""
    return int(digest_bytes(weights.encode())[:12], 16) % VOCABULARY


class EngineServer:
    """Serves a `ByteEngine` over HTTP."""

    def __init__(self, directory: Path) -> None:
        self.engine = ByteEngine()
        self._exchange = Exchange.open(directory)
        self._staged: WeightUpdate | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/call/{verb}", self._call)
        app.router.add_get("/state", self._state)
        app.router.add_post("/generate", self._generate)
        return app

    async def _call(self, request: web.Request) -> web.Response:
        body = await request.json()
        try:
            await self._do(request.match_info["verb"], body)
            answer: dict[str, object] = {"version": self.engine.version}
            if request.match_info["verb"] == "digest":
                answer["digest"] = await self.engine.weights_digest()
        except EngineError as error:
            return web.json_response(
                {"error": type(error).__name__, "message": str(error)}, status=500
            )
        return web.json_response(answer)

    async def _do(self, verb: str, body: dict[str, Any]) -> None:
        engine = self.engine
        match verb:
            case "load":
                await engine.load(Path(body["directory"]), body["version"])
            case "stage":
                update = self._exchange.get(body["record"])
                where = {spec.name: spec for spec in engine.tensors}  # a record does not say
                changes = tuple(replace(c, spec=where[c.spec.name]) for c in update.changes)
                self._staged = replace(update, changes=changes)
                await engine.stage(self._staged)
            case "install" | "undo":
                if self._staged is None or (verb == "install" and not engine.paused):
                    raise InstallFailed("not staged, or not paused")
                await getattr(engine, verb)(self._staged)
            case "pause":
                await engine.pause()
            case "resume":
                await engine.resume()

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.engine.version})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse()
        await response.prepare(request)
        asked = GenerationRequest(prompt=(1,), max_tokens=body["max_tokens"])
        try:
            async for token in self.engine.generate(asked):
                made = token_of(await self.engine.weights_digest())
                line = [made, token.version, token.finish_reason, time.monotonic_ns()]
                await response.write(json.dumps(line).encode() + b"\n")
                await asyncio.sleep(_TOKEN_S)
        except (EngineError, ConnectionError):
            pass  # the line that says how it ends is missing
        return response


async def serve_engine(port: int, directory: Path) -> None:
    runner = web.AppRunner(EngineServer(directory).app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


class RemoteEngine:
    """See `skerry.inference.engine.UndoableEngine`.

    Each token that is passed on goes to `log`, with the time at which the engine made it.
    """

    def __init__(self, name: str, port: int, directory: Path, log: Path) -> None:
        self._name = name
        self._url = f"http://127.0.0.1:{port}"
        self._exchange = Exchange.open(directory)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._session: aiohttp.ClientSession | None = None
        self._looking: asyncio.Task[None] | None = None
        self._version: int | None = None

    @property
    def version(self) -> int | None:
        return self._version

    async def load(self, directory: Path, version: int) -> None:
        await self._call("load", EngineBroken, directory=str(directory), version=version)

    async def stage(self, update: WeightUpdate) -> None:
        name = await asyncio.to_thread(self._exchange.put, update)
        await self._call("stage", InstallFailed, record=name)

    async def pause(self) -> None:
        await self._call("pause", EngineError)

    async def install(self, update: WeightUpdate) -> None:
        await self._call("install", EngineBroken)
        os.write(self._log, f"patched {self._name} {update.version}\n".encode())

    async def undo(self, update: WeightUpdate) -> None:
        await self._call("undo", EngineBroken)
        os.write(self._log, f"undone {self._name} {update.version}\n".encode())

    async def resume(self) -> None:
        await self._call("resume", EngineError)

    async def weights_digest(self) -> Digest:
        return Digest((await self._call("digest", EngineError))["digest"])

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        body = {"max_tokens": request.max_tokens}
        try:
            async with self._open().post("/generate", json=body) as response:
                async for line in response.content:
                    token, version, finish, made_ns = json.loads(line)
                    told = f"T {self._name} {version} {token} {made_ns}\n"
                    os.write(self._log, told.encode())
                    yield GeneratedToken(
                        token=token, logprob=0.0, version=version, finish_reason=finish
                    )
                    if finish is not None:
                        return
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"the engine's answer broke off: {error!r}") from error
        raise EngineError("the engine's answer ended early")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._session is not None:
            await self._session.close()

    async def _call(self, verb: str, lost: type[EngineError], **body: object) -> dict[str, Any]:
        try:
            async with self._open().post(f"/call/{verb}", json=body) as response:
                answer: dict[str, Any] = await response.json()
        except (aiohttp.ClientError, OSError) as error:
            self._version = None
            raise lost(f"{verb}: {error!r}") from error
        if response.status != 200:
            raise _ERRORS[answer["error"]](answer["message"])
        self._version = answer["version"]
        return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(self._url)
            self._looking = asyncio.create_task(self._look())
        return self._session

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                async with self._open().get("/state") as response:
                    self._version = (await response.json())["version"]
            except (aiohttp.ClientError, OSError):
                self._version = None
