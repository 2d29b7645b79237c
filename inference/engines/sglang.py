"""SGLang behind the `Engine` port, over its HTTP API: versions are reloaded from the mirror.

A load is whole or the engine has no version: SGLang rolls nothing back, so that before it is told
to load, its weights lose their label.  Not run against a real SGLang; see docs/engines.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from skerry.codec.digest import Digest
from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    RequestUnsupported,
    WeightUpdate,
)
from skerry.inference.engines.sglang_wire import UNKNOWN, Answer, generate_body, version_of
from skerry.inference.engines.tokens import read_tokenizer
from skerry.inference.engines.vllm_config import PausePolicy, SglangConfig
from skerry.inference.slot import Changes

logger = logging.getLogger(__name__)

_MODES: Mapping[PausePolicy, str] = {
    "keep": "in_place", "recompute": "retract", "drain": "in_place", "abort": "abort"
}  # fmt: skip
_MAX_ANSWER_BYTES = 16 << 20
_MAX_EVENT_BYTES = 64 << 20  # each event repeats the whole answer
_REFUSED_MODES = {"stream_output": False, "incremental_streaming_output": False, "dp_size": 1,
                  "disaggregation_mode": "null"}  # fmt: skip


@dataclass(slots=True, eq=False)
class _Running:
    installs: int
    made: bool = False
    outdated: bool = False


class SglangEngine:
    """See `skerry.inference.engine.MirrorReader`, which this class implements."""

    reads_mirror = True

    def __init__(self, config: SglangConfig) -> None:
        self._url = config.url.rstrip("/")
        self._policy = config.policy
        self._state_s = config.state_s
        self._looking: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._namespace = f"{config.namespace}/{secrets.token_hex(4)}"
        self._session: aiohttp.ClientSession | None = None
        self._directory: Path | None = None
        self._tokenizer: Tokenizer | None = None
        self._vocabulary = self._context = 0
        self._deterministic = False
        self._version: int | None = None
        self._installs = 0
        self._staged: tuple[int, int, Digest] | None = None
        self._paused = False
        self._running: set[_Running] = set()
        self._changes = Changes()

    @property
    def version(self) -> int | None:
        return self._version

    async def load(self, directory: Path, version: int) -> None:
        self._staged = self._version = None
        try:
            await self._learn(directory)
            await self._call("pause_generation", {"mode": "abort"})
            await self._replace(directory, version, flush=True)
            self._directory = directory
        except (EngineError, OSError, ValueError) as error:
            raise EngineBroken(f"version {version}: {error}") from error
        finally:
            with suppress(EngineError):  # the gate resumes, too, and says so if it cannot
                await self.resume()

    async def stage(self, update: WeightUpdate) -> None:
        """Check the base.  All bits come from the mirror, which the agent has verified."""
        self._staged = None
        if self._version is None or update.base != self._version:
            raise InstallFailed(f"an update of {update.base}, serving {self._version}")
        self._staged = update.base, update.version, update.digest

    async def pause(self) -> None:
        if self._policy == "drain":
            while self._running:
                await self._changes.wait(None)
        await self._call("pause_generation", {"mode": _MODES[self._policy]})
        self._paused = True

    async def install(self, update: WeightUpdate) -> None:
        staged, self._staged = self._staged, None
        if staged != (update.base, update.version, update.digest) or not self._paused:
            raise InstallFailed(f"version {update.version} is not staged, or the engine runs")
        assert self._directory is not None
        self._version = None
        try:
            # In place, running requests keep their cache, and SGLang would refuse to flush it.
            await self._replace(self._directory, update.version, flush=self._policy == "recompute")
        except EngineError as error:
            raise EngineBroken(f"version {update.version}: {error}") from error

    async def resume(self) -> None:
        await self._call("continue_generation", {})
        self._paused = False

    async def weights_digest(self) -> Digest:
        """Raises EngineError: SGLang gives out no bits by the names of the checkpoint."""
        raise EngineError("SGLang's weights cannot be read back")

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokens().encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text, without the special ones."""
        return str(self._tokens().decode(list(tokens), skip_special_tokens=True))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        self._check(request)
        while True:
            running = _Running(self._installs)
            self._running.add(running)
            try:
                async for token in self._ask(request, running):
                    running.made = True
                    yield token
                    if token.finish_reason is not None:
                        return
            finally:
                self._running.discard(running)
                self._changes.wake()
            if not running.outdated:
                raise EngineError("the engine's answer ended before the request did")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
            self._looking = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self, request: GenerationRequest, running: _Running
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Yield tokens; end early when the request is outdated: it has none, and is sent again."""
        if self._version is None:
            raise EngineError("the engine serves no version")
        began = self._version
        key = f"skerry/{self._namespace}/{self._installs}/{began}"
        answer = Answer()
        try:
            async with self._open().post(
                f"{self._url}/generate", json=generate_body(request, key)
            ) as response:
                if response.status == 400:
                    raise RequestUnsupported(f"SGLang: {(await _read(response))[:500]!r}")
                if response.status != 200:
                    raise EngineError(f"generate: HTTP {response.status}")
                async for line in response.content:
                    if running.outdated:
                        return
                    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                        continue
                    whole = began if running.installs == self._installs else None
                    for token in answer.push(_object(line[5:]), whole):
                        yield token
                    if answer.ended:
                        return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if not running.outdated:
                raise EngineError(f"the engine's answer broke off: {error!r}") from error

    async def _replace(self, directory: Path, version: int, *, flush: bool) -> None:
        """Load a directory under a new label; weights that fail to load keep none."""
        async with self._changing:
            unnamed = {"new_version": UNKNOWN, "abort_all_requests": False}
            await self._call("update_weight_version", unnamed)
            body = {
                "model_path": str(directory.absolute()),
                "weight_version": str(version),
                "abort_all_requests": False,
                "flush_cache": flush,
            }
            answer = await self._call("update_weights_from_disk", body)
            if answer.get("success") is not True:
                raise EngineError(f"update_weights_from_disk: {answer.get('message')!r:.500}")
            told = version_of((await self._call("model_info")).get("weight_version"))
            if told != version:
                raise EngineError(f"model_info: expected version {version}, found {told}")
            self._version = version
            self._installs += 1
            for running in self._running:
                running.outdated = not running.made

    async def _look(self) -> None:
        """Notice when the server is another process than it was: its label is another, too."""
        while True:
            await asyncio.sleep(self._state_s)
            async with self._changing:
                try:
                    told = version_of((await self._call("model_info")).get("weight_version"))
                except EngineError:
                    told = None
                if told != self._version:
                    self._version = None

    async def _learn(self, directory: Path) -> None:
        """Read what requests are checked against, and how the server was started."""
        self._tokenizer = await asyncio.to_thread(read_tokenizer, directory)
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self._vocabulary = int(config["vocab_size"])
        server = await self._call("server_info")
        for name, value in _REFUSED_MODES.items():
            if server.get(name, value) != value:
                raise EngineError(f"SGLang was started with {name}={server[name]!r:.40}")
        limit = server.get("context_length") or config["max_position_embeddings"]
        self._context = int(limit)
        self._deterministic = server.get("enable_deterministic_inference") is True

    def _check(self, request: GenerationRequest) -> None:
        if request.routed_experts:
            raise RequestUnsupported("return_routed_experts: not through the gate of SGLang")
        size = len(request.prompt) + request.max_tokens
        if not request.prompt or request.max_tokens < 1 or size > self._context:
            raise RequestUnsupported(f"expected prompt and output within {self._context} tokens")
        if not all(0 <= token < self._vocabulary for token in request.prompt):
            raise RequestUnsupported(f"prompt: expected tokens below {self._vocabulary}")
        if request.seed is not None and request.temperature > 0 and not self._deterministic:
            raise RequestUnsupported("seed: SGLang runs without --enable-deterministic-inference")

    async def _call(self, name: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        """Make one control call; without a body it asks.  Raises EngineError."""
        method = "GET" if body is None else "POST"
        try:
            async with self._open().request(method, f"{self._url}/{name}", json=body) as response:
                data = await _read(response)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{name}: {error!r}") from error
        if response.status != 200:
            raise EngineError(f"{name}: HTTP {response.status}: {data[:500]!r}")
        try:
            return _object(data)
        except ValueError:
            return {}  # some answers are plain text

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=10.0),
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=_MAX_EVENT_BYTES,
            )
            self._looking = asyncio.create_task(self._look())
        return self._session

    def _tokens(self) -> Tokenizer:
        if self._tokenizer is None:
            raise EngineError("no version with a tokenizer is loaded")
        return self._tokenizer


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > _MAX_ANSWER_BYTES:
            raise EngineError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes")
    return bytes(data)


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {data[:80]!r}")
    return value
