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
from skerry.inference.engines.sglang_http import SglangServer, parse_object, read
from skerry.inference.engines.sglang_wire import UNKNOWN, Answer, generate_body, version_of
from skerry.inference.engines.tokens import read_tokenizer
from skerry.inference.engines.vllm_config import PausePolicy, SglangConfig
from skerry.inference.slot import Changes

logger = logging.getLogger(__name__)

_MODES: Mapping[PausePolicy, str] = {
    "keep": "in_place", "recompute": "retract", "drain": "in_place", "abort": "abort"
}  # fmt: skip
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
        self._server = SglangServer(config.url, self._watch)
        self._policy = config.policy
        self._state_s = config.state_s
        self._looking: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._namespace = f"{config.namespace}/{secrets.token_hex(4)}"
        self._directory: Path | None = None
        self._tokenizer: Tokenizer | None = None
        self._vocabulary = self._context = 0
        self._deterministic = False
        self._version: int | None = None
        self._installs = 0
        self._staged: tuple[int, int, Digest] | None = None
        self._paused = False
        self._running: set[_Running] = set()
        self._closed = False  # whoever comes waits until it is resumed
        self._changes = Changes()

    @property
    def version(self) -> int | None:
        return self._version

    @property
    def pause_drains(self) -> bool:
        """See `skerry.inference.engine.DrainingEngine`."""
        return self._policy == "drain"

    async def load(self, directory: Path, version: int) -> None:
        self._staged = self._version = None
        try:
            await self._learn(directory)
            self._close(ending=True)
            await self._server.call("pause_generation", {"mode": "abort"})
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
        self._close(ending=self._policy == "abort")
        while self._policy == "drain" and self._running:
            await self._changes.wait(None)
        await self._server.call("pause_generation", {"mode": _MODES[self._policy]})
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
        await self._server.call("continue_generation", {})
        self._paused = self._closed = False
        self._changes.wake()

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
            while self._closed:
                await self._changes.wait(None)
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
        await self._server.close()

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
            async with self._server.generate(generate_body(request, key)) as response:
                if response.status == 400:
                    raise RequestUnsupported(f"SGLang: {(await read(response))[:500]!r}")
                if response.status != 200:
                    raise EngineError(f"generate: HTTP {response.status}")
                async for line in response.content:
                    if running.outdated:
                        return
                    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                        continue
                    whole = began if running.installs == self._installs else None
                    for token in answer.push(parse_object(line[5:]), whole):
                        yield token
                    if answer.ended:
                        return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if not running.outdated:
                raise EngineError(f"the engine's answer broke off: {error!r}") from error

    def _close(self, *, ending: bool) -> None:
        """Let nobody in: draining would never end, and a load is a time without any version.

        `ending` sends again, later, who has no token yet: the server ends them all.
        """
        self._closed = True
        if ending:
            self._outdate()

    def _outdate(self) -> None:
        for running in self._running:
            running.outdated = not running.made

    async def _replace(self, directory: Path, version: int, *, flush: bool) -> None:
        """Load a directory under a new label; weights that fail to load keep none."""
        async with self._changing:
            unnamed = {"new_version": UNKNOWN, "abort_all_requests": False}
            await self._server.call("update_weight_version", unnamed)
            body = {
                "model_path": str(directory.absolute()),
                "weight_version": str(version),
                "abort_all_requests": False,
                "flush_cache": flush,
            }
            answer = await self._server.call("update_weights_from_disk", body)
            if answer.get("success") is not True:
                raise EngineError(f"update_weights_from_disk: {answer.get('message')!r:.500}")
            told = version_of((await self._server.call("model_info")).get("weight_version"))
            if told != version:
                raise EngineError(f"model_info: expected version {version}, found {told}")
            self._version = version
            self._installs += 1
            self._outdate()

    async def _look(self) -> None:
        """Notice when the server is another process than it was: its label is another, too."""
        while True:
            await asyncio.sleep(self._state_s)
            async with self._changing:
                try:
                    told = version_of((await self._server.call("model_info")).get("weight_version"))
                except EngineError:
                    told = None
                if told != self._version:
                    self._version = None

    async def _learn(self, directory: Path) -> None:
        """Read what requests are checked against, and how the server was started."""
        self._tokenizer = await asyncio.to_thread(read_tokenizer, directory)
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self._vocabulary = int(config["vocab_size"])
        server = await self._server.call("server_info")
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

    def _watch(self) -> None:
        self._looking = asyncio.create_task(self._look())

    def _tokens(self) -> Tokenizer:
        if self._tokenizer is None:
            raise EngineError("no version with a tokenizer is loaded")
        return self._tokenizer
