"""An engine that makes tokens at once, behind the gate or bare: what `bench_gate` asks.

`python -m skerry.benchmarks.gate_server gate|bare PORT`
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from skerry.codec.digest import Digest
from skerry.inference import (
    AdmissionGate,
    GeneratedToken,
    GenerationRequest,
    KnownVersions,
    WeightUpdate,
)
from skerry.inference.server import create_app

VERSION = 44


class InstantEngine:
    """See `skerry.inference.engine.Engine`.  Its tokens are all the same and take no time."""

    version: int | None = VERSION

    async def load(self, directory: Path, version: int) -> None:
        self.version = version

    async def stage(self, update: WeightUpdate) -> None: ...

    async def pause(self) -> None: ...

    async def install(self, update: WeightUpdate) -> None:
        self.version = update.version

    async def resume(self) -> None: ...

    async def weights_digest(self) -> Digest:
        return Digest("00" * 32)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        for made in range(1, request.max_tokens + 1):
            finish = "length" if made == request.max_tokens else None
            yield GeneratedToken(token=65, logprob=-0.5, version=VERSION, finish_reason=finish)

    async def close(self) -> None: ...


def gated() -> FastAPI:
    engines = {"instant": InstantEngine()}
    gate = AdmissionGate(engines)
    gate.tell(KnownVersions(newest=VERSION))
    gate.set_served("instant", VERSION)
    return create_app(gate, engines)


def bare() -> FastAPI:
    """Answer in the same shape, without a gate, versions or checks."""
    app, engine = FastAPI(openapi_url=None), InstantEngine()

    async def completions(request: Request) -> JSONResponse:
        body = await request.json()
        asked = GenerationRequest(prompt=tuple(body["prompt"]), max_tokens=body["max_tokens"])
        made = [token async for token in engine.generate(asked)]
        choice = {
            "index": 0,
            "text": engine.decode([token.token for token in made]),
            "token_ids": [token.token for token in made],
            "logprobs": {"token_logprobs": [token.logprob for token in made]},
            "finish_reason": made[-1].finish_reason,
        }
        return JSONResponse({"object": "text_completion", "choices": [choice]})

    app.add_api_route("/v1/completions", completions, methods=["POST"])
    return app


if __name__ == "__main__":
    app = {"gate": gated, "bare": bare}[sys.argv[1]]()
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
