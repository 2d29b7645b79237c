"""The adapter and the plug-in over HTTP, around ranks without vLLM: routes that are passed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from skerry.inference.engine import EngineError, PassedRequest, RequestUnsupported
from skerry.inference.engines import VllmConfig, VllmEngine
from skerry.inference.exchange import Exchange
from skerry.inference.vllm.endpoint import SkerryEndpoint
from skerry.inference.vllm.front import Front
from tests.inference.placement.models import version_path
from tests.inference.serving import serve
from tests.inference.vllm.ranks import RanksCore

CHAT, TOKENS = "/v1/chat/completions", "/inference/v1/generate"


class Server:
    """An API server with the plug-in, and routes as vLLM has them that say what they were sent."""

    def __init__(self, root: Path) -> None:
        self.exchange = Exchange.open(root / "exchange")
        self.root = root
        self.front: Front | None = None
        self.seen: list[dict[str, Any]] = []
        self.endpoint = SkerryEndpoint()
        self.app = FastAPI()
        self.endpoint.attach_router(self.app)
        self.app.add_api_route(CHAT, self._chat, methods=["POST"])
        self.app.add_api_route(TOKENS, self._tokens, methods=["POST"])

    async def start(self) -> None:
        """Become a new process: another instance, and nothing loaded."""
        self.front = Front(RanksCore(self.root), self.exchange)
        self.endpoint._front, self.endpoint._token = self.front, self.exchange.token()

    async def _chat(self, request: Request) -> Response:
        self.seen.append({"body": await request.json(), "headers": dict(request.headers)})
        return Response(b'{"choices": []}', media_type="application/json")

    async def _tokens(self, request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"data: {}\n\n"
            assert self.front is not None
            await self.front.load(version_path(self.root, 1), 1, "")
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


@contextmanager
def served(root: Path) -> Iterator[tuple[Server, VllmEngine]]:
    server = Server(root)
    with serve(server.app, server.start) as url:
        config = VllmConfig(url=url, directory=root / "exchange", namespace="run-7", state_s=3600.0)
        yield server, VllmEngine(config)


def asked(route: str = CHAT, version: int = 0, **body: object) -> PassedRequest:
    return PassedRequest(
        route=route, body=body, version=version, headers={"authorization": "Bearer theirs"}
    )


async def answer_of(engine: VllmEngine, request: PassedRequest) -> bytes:
    async with engine.ask(request) as answer:
        assert answer.status == 200
        return b"".join([piece async for piece in answer.pieces])


def test_a_request_is_salted_with_its_version_and_bears_no_token_of_ours(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        assert json.loads(await answer_of(engine, asked(n=1))) == {"choices": []}
        await answer_of(engine, asked(cache_salt="mine"))
        salts = [seen["body"]["cache_salt"] for seen in server.seen]
        assert salts == ["skerry/run-7/0", "skerry/run-7/0/mine"]
        assert server.seen[0]["body"]["n"] == 1
        assert {seen["headers"]["authorization"] for seen in server.seen} == {"Bearer theirs"}
        for salt in (7, "", "x" * 1024):
            with pytest.raises(RequestUnsupported, match="cache_salt"):
                await answer_of(engine, asked(cache_salt=salt))

    _run(tmp_path, body)


def test_other_weights_than_the_gate_admitted_the_request_to_answer_nothing(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match="not said yet"):
            await answer_of(engine, asked())
        await engine.load(version_path(tmp_path, 0), 0)
        with pytest.raises(EngineError, match="X-Skerry-Weights"):
            await answer_of(engine, asked(version=1))
        await server.start()  # a restart that nobody has noticed yet
        with pytest.raises(EngineError, match="X-Skerry-Weights"):
            await answer_of(engine, asked())
        assert not server.seen

    _run(tmp_path, body)


def test_an_answer_under_which_the_weights_change_is_broken_off(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        with pytest.raises(EngineError):
            await answer_of(engine, asked(TOKENS))

    _run(tmp_path, body)


def test_a_server_that_proves_nothing_is_not_believed(tmp_path: Path) -> None:
    """One whose plug-in is older than the agent answers without naming its weights."""

    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        server.app.user_middleware.clear()
        server.app.middleware_stack = server.app.build_middleware_stack()
        with pytest.raises(EngineError, match="expected weights"):
            await answer_of(engine, asked())

    _run(tmp_path, body)


def _run(root: Path, body: Any) -> None:
    async def main(server: Server, engine: VllmEngine) -> None:
        try:
            await body(server, engine)
        finally:
            await engine.close()

    with served(root) as (server, engine):
        asyncio.run(main(server, engine))
