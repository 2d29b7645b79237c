"""The plug-in around ranks without vLLM, in a server whose routes are as vLLM has them.

They call the engine client, which says at the end of each choice what made its tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from skerry.inference.engine import PassedRequest
from skerry.inference.engines import VllmConfig, VllmEngine
from skerry.inference.engines.vllm_config import PausePolicy
from skerry.inference.exchange import Exchange
from skerry.inference.vllm.account import keep_accounts
from skerry.inference.vllm.endpoint import SkerryEndpoint
from skerry.inference.vllm.front import Front
from tests.inference.placement.models import version_path
from tests.inference.serving import serve
from tests.inference.vllm.ranks import RanksCore

CHAT, TOKENS = "/v1/chat/completions", "/inference/v1/generate"


@dataclass(eq=False)
class Client:
    """vLLM's `EngineClient`, as far as routes know it: two tokens for each choice."""

    label: str = "0"
    ending: bool = True
    spans: bool = True
    model_config: Any = field(default_factory=lambda: SimpleNamespace(served_model_name="policy"))

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **more: Any
    ) -> AsyncIterator[Any]:
        yield self._output(sampling_params.n, None)
        if self.ending:
            yield self._output(sampling_params.n, "stop")

    def _output(self, n: int, finish: str | None) -> Any:
        spans = [SimpleNamespace(version=self.label, start=0, end=2)]
        return SimpleNamespace(
            outputs=[
                SimpleNamespace(
                    index=index,
                    finish_reason=finish,
                    weight_versions=spans if finish and self.spans else None,
                )
                for index in range(n)
            ]
        )


class Server:
    """An API server with the plug-in, and routes that say what they were sent."""

    def __init__(self, root: Path) -> None:
        self.exchange = Exchange.open(root / "exchange")
        self.root = root
        self.front: Front | None = None
        self.client = Client()
        keep_accounts(self.client)
        keep_accounts(self.client)  # as by two plug-ins in one process
        self.seen: list[dict[str, Any]] = []
        self.reload = False
        self.endpoint = SkerryEndpoint()
        self.app = FastAPI()
        self.endpoint.attach_router(self.app)
        self.app.add_api_route(CHAT, self._answer, methods=["POST"])
        self.app.add_api_route(TOKENS, self._answer, methods=["POST"])

    async def start(self) -> None:
        """Become a new process: another instance, and nothing loaded."""
        self.front = Front(RanksCore(self.root), self.exchange)
        self.endpoint._front, self.endpoint._token = self.front, self.exchange.token()

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.seen.append({"body": body, "headers": dict(request.headers)})
        if "status" in body:
            return JSONResponse({"error": "no such model"}, status_code=body["status"])
        params = SimpleNamespace(n=body.get("n", 1))
        outputs = self.client.generate([1], params, "r-1")
        if body.get("stream"):
            return StreamingResponse(self._events(outputs), media_type="text/event-stream")
        async for _ in outputs:
            pass
        if body.get("twice"):
            async for _ in self.client.generate([1], params, "r-2"):
                pass
        return JSONResponse({"choices": []})

    async def _events(self, outputs: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for _ in outputs:
            yield "data: {}\n\n"
            if self.reload:
                assert self.front is not None
                await self.front.load(version_path(self.root, 0), 0, "")
        yield "data: [DONE]\n\n"


@contextmanager
def served(root: Path, policy: PausePolicy = "keep") -> Iterator[tuple[Server, VllmEngine]]:
    server = Server(root)
    with serve(server.app, server.start) as url:
        config = VllmConfig(
            url=url,
            directory=root / "exchange",
            policy=policy,
            namespace="run-7",
            state_s=3600.0,
        )
        yield server, VllmEngine(config)


def asked(route: str = CHAT, version: int = 0, **body: object) -> PassedRequest:
    return PassedRequest(
        route=route, body=body, version=version, headers={"authorization": "Bearer theirs"}
    )


async def answer_of(engine: VllmEngine, request: PassedRequest) -> bytes:
    async with engine.ask(request) as answer:
        assert answer.status == 200
        return b"".join([piece async for piece in answer.pieces])


Body = Callable[[Server, VllmEngine], Awaitable[None]]


def run(root: Path, body: Body, policy: PausePolicy = "keep") -> None:
    async def main(server: Server, engine: VllmEngine) -> None:
        try:
            await body(server, engine)
        finally:
            await engine.close()

    with served(root, policy) as (server, engine):
        asyncio.run(main(server, engine))
