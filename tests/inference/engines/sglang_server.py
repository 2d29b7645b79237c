"""A server that speaks SGLang's HTTP protocol as it was read, over checkpoints that tell versions.

Its tokens are a function of the hash of its weights, so that every label can be proved.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from skerry.codec.errors import CodecError
from skerry.inference.slot import Changes
from tests.inference.checkpoints import digest_of, read_checkpoint
from tests.inference.stand_in import VOCABULARY, Checkpoints, token_of

FORBIDDEN = 418


def serving_files(checkpoints: Checkpoints, version: int) -> Path:
    """Return a checkpoint directory with what an engine needs beside weights."""
    path = checkpoints.path(version)
    Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>")).save(str(path / "tokenizer.json"))
    config = {"vocab_size": VOCABULARY, "max_position_embeddings": 8192}
    (path / "config.json").write_text(json.dumps(config))
    return path


class SglangServer:
    """`spans` False is a server too old to tell them; `failing` loads half and says so."""

    def __init__(self) -> None:
        self.label = "default"
        self.digest = "no weights of ours"
        self.info: dict[str, Any] = {"dp_size": 1, "disaggregation_mode": "null"}
        self.spans = True
        self.failing = False
        self.paused = False
        self.paced = False
        self.permits = 0
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.flushes: list[bool] = []
        self.running = 0
        self.aborts = 0
        self.changes = Changes()
        self.app = FastAPI()
        posts = {
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weight_version": self._name,
            "/update_weights_from_disk": self._load,
            "/generate": self._generate,
        }
        for path, handler in posts.items():
            self.app.add_api_route(path, handler, methods=["POST"], response_model=None)
        self.app.add_api_route("/model_info", self._model_info, response_model=None)
        self.app.add_api_route("/server_info", self._server_info, response_model=None)

    def permit(self, tokens: int) -> None:
        self.paced, self.permits = True, self.permits + tokens
        self.changes.wake()

    async def _model_info(self) -> Response:
        return JSONResponse({"weight_version": self.label})

    async def _server_info(self) -> Response:
        return JSONResponse(self.info)

    async def _pause(self, request: Request) -> Response:
        mode = (await request.json())["mode"]
        self.calls.append(f"pause {mode}")
        self.paused = True
        if mode == "abort":
            self.aborts += 1
            self.changes.wake()
        return JSONResponse({"status": "ok"})

    async def _continue(self, request: Request) -> Response:
        self.calls.append("continue")
        self.paused = False
        self.changes.wake()
        return JSONResponse({"status": "ok"})

    async def _name(self, request: Request) -> Response:
        body = await request.json()
        if body["abort_all_requests"] is not False:
            return Response(status_code=FORBIDDEN)
        self.label = body["new_version"]
        return JSONResponse({"success": True, "new_version": self.label})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        self.calls.append(f"load {body['weight_version']}")
        self.flushes.append(body["flush_cache"])
        if not self.paused:
            return Response(status_code=FORBIDDEN)
        try:
            digest = digest_of(read_checkpoint(Path(body["model_path"])))
        except (CodecError, OSError) as error:
            return JSONResponse({"success": False, "message": str(error)}, status_code=400)
        if self.failing:
            self.digest = "half"
            return JSONResponse({"success": False, "message": "rank 1 failed"}, status_code=400)
        self.digest, self.label = digest, body["weight_version"]
        return JSONResponse({"success": True, "message": "Succeeded"})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.keys.append(body["extra_key"])
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        wanted = body["sampling_params"]["max_new_tokens"]
        made: list[tuple[int, str]] = []
        aborts = self.aborts
        self.running += 1
        self.changes.wake()
        try:
            while len(made) < wanted:
                while aborts == self.aborts and (self.paused or (self.paced and not self.permits)):
                    await self.changes.wait(None)
                if aborts != self.aborts:
                    yield self._event(made, reason="abort")
                    return
                self.permits -= self.paced
                made.append((token_of(self.digest, len(made)), self.label))  # type: ignore[arg-type]
                self.changes.wake()
                yield self._event(made, reason="length" if len(made) == wanted else None)
                await asyncio.sleep(0)
            yield b"data: [DONE]\n\n"
        finally:
            self.running -= 1
            self.changes.wake()

    def _event(self, made: list[tuple[int, str]], *, reason: str | None) -> bytes:
        spans: list[dict[str, Any]] = []
        for at, (_, label) in enumerate(made):
            if not spans or spans[-1]["version"] != label:
                spans.append({"version": label, "start": at, "end": at})
            spans[-1]["end"] = at + 1
        meta: dict[str, Any] = {
            "output_token_logprobs": [[-0.5, token, None] for token, _ in made],
            "finish_reason": reason and {"type": reason, "length": len(made)},
            "weight_version": self.label,
        }
        if self.spans:
            meta["weight_versions"] = spans
        return b"data: " + json.dumps({"text": "", "meta_info": meta}).encode() + b"\n\n"
