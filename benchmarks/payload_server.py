"""An engine's server whose answers are large, and a gate before it: what `bench_payload` asks.

`python -m skerry.benchmarks.payload_server engine BYTES PORT`, or `gate URL PORT`
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from skerry.benchmarks.gate_server import VERSION, InstantEngine
from skerry.inference import AdmissionGate, KnownVersions
from skerry.inference.engine import PassedAnswer, PassedRequest
from skerry.inference.engines.upstream import Upstream
from skerry.inference.server import create_app
from skerry.inference.vllm.account import keep_accounts
from skerry.inference.vllm.guard import WeightsGuard
from skerry.inference.vllm.weights import HEADER, Weights

ROUTE, CPU = "/inference/v1/generate", "/cpu"
_WEIGHTS = Weights("bench", VERSION)
NAME = _WEIGHTS.name


class PassingEngine(InstantEngine):
    """See `skerry.inference.engine.PassingEngine`: it passes on to the server at `url`."""

    routes = (ROUTE,)

    def __init__(self, url: str) -> None:
        self._upstream = Upstream(url)

    def ask(self, request: PassedRequest) -> AbstractAsyncContextManager[PassedAnswer]:
        return self._upstream.ask(request.route, request.body, request.headers, (HEADER, NAME))


class _Client:
    """vLLM's `EngineClient`, as far as accounts are kept of it: one token at once."""

    model_config = SimpleNamespace(served_model_name="policy")

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str
    ) -> AsyncIterator[Any]:
        spans = [SimpleNamespace(version=str(VERSION), start=0, end=1)]
        made = SimpleNamespace(index=0, finish_reason="stop", weight_versions=spans)
        yield SimpleNamespace(outputs=[made])


def engine(nbytes: int) -> FastAPI:
    """Answer as vLLM does with routed experts: one object, made whole before it is sent."""
    app, client = FastAPI(openapi_url=None), _Client()
    keep_accounts(client)
    content = b'{"routed_experts":"' + b"A" * nbytes + b'"}'

    async def generate(request: Request) -> Response:
        await request.json()
        async for _ in client.generate([1], SimpleNamespace(n=1), "r"):
            pass
        return Response(content, media_type="application/json")

    app.add_api_route(ROUTE, generate, methods=["POST"], response_model=None)
    app.add_middleware(WeightsGuard, serves=lambda: _WEIGHTS)
    return app


def gate(url: str) -> FastAPI:
    engines = {"passing": PassingEngine(url)}
    admission = AdmissionGate(engines)
    admission.tell(KnownVersions(newest=VERSION))
    admission.set_served("passing", VERSION)
    return create_app(admission, engines)


async def _cpu() -> Response:
    return PlainTextResponse(str(time.process_time()))


if __name__ == "__main__":
    kind, of, port = sys.argv[1:]
    app = engine(int(of)) if kind == "engine" else gate(of)
    app.add_api_route(CPU, _cpu, response_model=None)
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)
