"""vLLM behind the `Engine` port: the agent's side of the plug-in in `skerry.inference.vllm`.

It drives a server that runs on the same host, over HTTP and a directory that both can read; how to
start one is in docs/engines.md.  Needs no torch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from skerry.codec.digest import Digest, parse_digest
from skerry.inference.bounded import read_at_most
from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    PassedAnswer,
    PassedRequest,
    RequestUnsupported,
    WeightUpdate,
)
from skerry.inference.engines.tokens import read_tokenizer
from skerry.inference.engines.upstream import Upstream, salted
from skerry.inference.engines.vllm_config import VllmConfig
from skerry.inference.engines.vllm_served import Served
from skerry.inference.exchange import Exchange
from skerry.inference.vllm import wire
from skerry.inference.vllm.weights import HEADER, Weights

logger = logging.getLogger(__name__)

_ERRORS: Mapping[str, type[EngineError]] = {
    kind.__name__: kind for kind in (InstallFailed, EngineBroken, RequestUnsupported)
}
_MAX_LINE_BYTES = 1 << 20
_MAX_ANSWER_BYTES = 64 << 20


class VllmEngine:
    """See `skerry.inference.engine.PassingEngine`, which this class implements."""

    routes = ("/v1/chat/completions", "/inference/v1/generate")

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self._exchange = Exchange.open(config.directory)
        self._upstream = Upstream(config.url)
        self._session: aiohttp.ClientSession | None = None
        self._looking: asyncio.Task[None] | None = None
        self._tokenizer: Tokenizer | None = None
        self._served = Served()
        self._staged: tuple[int, int, Digest] | None = None

    @property
    def version(self) -> int | None:
        return self._served.version

    @property
    def reads_mirror(self) -> bool:
        """See `skerry.inference.engine.MirrorReader`: modules that are made anew, several ranks."""
        return self._served.reads_mirror

    @property
    def pause_drains(self) -> bool:
        """See `skerry.inference.engine.DrainingEngine`."""
        return self._config.policy == "drain"

    async def load(self, directory: Path, version: int) -> None:
        self._staged = self._served.version = None
        try:
            self._tokenizer = await asyncio.to_thread(read_tokenizer, directory)
        except (OSError, ValueError) as error:
            # The server is told all the same: it must not go on with what it has.
            logger.warning("no tokenizer in %s: %s", directory, error)
        body = {
            "directory": str(directory.absolute()),
            "version": version,
            "namespace": self._config.namespace,
        }
        await self._call("load", body, EngineBroken)

    async def stage(self, update: WeightUpdate) -> None:
        self._staged = None
        try:
            name = await asyncio.to_thread(self._exchange.put, update)
            answer = await self._call("stage", {"record": name}, InstallFailed)
        except (OSError, ValueError) as error:
            raise InstallFailed(f"version {update.version}: no record: {error}") from error
        finally:
            await asyncio.to_thread(self._exchange.drop)  # mapped where it is needed still
        for rank, said in enumerate(answer.get("ranks", ())):
            for parameter, why in dict(said.get("derived") or {}).items():
                logger.info("version %d rank %d: %s is made anew: %s",
                            update.version, rank, parameter, why)  # fmt: skip
        self._staged = _name(update)

    async def pause(self) -> None:
        config = self._config
        await self._call("pause", {"policy": config.policy, "lease_s": config.lease_s}, EngineError)

    async def install(self, update: WeightUpdate) -> None:
        if self._staged != _name(update):
            raise InstallFailed(f"version {update.version} is not staged")
        self._staged = None
        # An answer that does not come leaves it open what the weights are.
        await self._call("install", {"version": update.version}, EngineBroken)

    async def undo(self, update: WeightUpdate) -> None:
        """See `skerry.inference.engine.UndoableEngine`."""
        await self._call("undo", {"version": update.version}, EngineBroken)

    async def resume(self) -> None:
        await self._call("resume", {}, EngineError)

    async def weights_digest(self) -> Digest:
        answer = await self._call("read-back", {}, EngineError)
        unread = answer.get("from_mirror") or ()
        if unread:
            logger.info("%d tensors are not whole in the engine, and were hashed in the mirror: "
                        "%s and so on", len(unread), unread[0])  # fmt: skip
        return parse_digest(answer.get("digest"))

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokens().encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text, without the special ones."""
        return str(self._tokens().decode(list(tokens), skip_special_tokens=True))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        body = wire.request_body(request)
        try:
            async with self._open().post("generate", json=body) as response:
                if response.status != 200:
                    raise await _error(response, EngineError)
                async for line in response.content:
                    for token in self._parse(line):
                        yield token
                        if token.finish_reason is not None:
                            return
        except aiohttp.ClientError as error:
            raise EngineError(f"the engine's answer broke off: {error!r}") from error
        raise EngineError("the engine's answer ended before the request did")

    def ask(self, request: PassedRequest) -> AbstractAsyncContextManager[PassedAnswer]:
        install = self._served.install
        if not install:
            raise EngineError("the engine has not said yet what it serves")
        salt = partial(wire.salt, self._config.namespace, request.version, install)
        body = salted(request.body, salt)
        name = Weights(install, request.version).name
        return self._upstream.ask(request.route, body, request.headers, (HEADER, name))

    async def close(self) -> None:
        await self._upstream.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
            self._looking = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _parse(self, line: bytes) -> list[GeneratedToken]:
        error = wire.parse_object(line).get("error")
        if isinstance(error, dict):
            kind = _ERRORS.get(str(error.get("type")), EngineError)
            raise kind(str(error.get("message")))
        try:
            return wire.parse_line(line)
        except wire.BodyInvalid as invalid:
            raise EngineError(str(invalid)) from invalid

    async def _call(
        self, name: str, body: Mapping[str, object], lost: type[EngineError]
    ) -> Mapping[str, Any]:
        """Make one control call.  Raises what the server says, or `lost` if it says nothing."""
        try:
            async with self._open().post(name, json=body) as response:
                if response.status != 200:
                    raise await _error(response, lost)
                answer = wire.parse_object(await _read(response))
        except EngineBroken:
            self._served.version = None
            raise
        except (aiohttp.ClientError, OSError, wire.BodyInvalid) as error:
            if lost is EngineBroken:
                self._served.version = None
            raise lost(f"{name}: {error!r}") from error
        self._note(answer)
        return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                f"{self._config.url.rstrip('/')}/skerry/v1/",
                headers={"Authorization": f"Bearer {self._exchange.token()}"},
                # Requests run for as long as they need; the fleet bounds its calls itself.
                timeout=aiohttp.ClientTimeout(total=None, connect=10.0),
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=_MAX_LINE_BYTES,
            )
            self._looking = asyncio.create_task(self._look())
        return self._session

    async def _look(self) -> None:
        """Notice when the server is another process than it was, or lost its weights."""
        while True:
            await asyncio.sleep(self._config.state_s)
            try:
                async with self._open().get("state") as response:
                    answer = wire.parse_object(await _read(response))
            except (aiohttp.ClientError, OSError, wire.BodyInvalid, EngineError):
                self._served.version = None
                continue
            self._note(answer)

    def _note(self, answer: Mapping[str, Any]) -> None:
        if self._served.note(answer):
            logger.warning("the engine was restarted")
            self._staged = None

    def _tokens(self) -> Tokenizer:
        if self._tokenizer is None:
            raise EngineError("no version with a tokenizer is loaded")
        return self._tokenizer


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data, whole = await read_at_most(response, _MAX_ANSWER_BYTES)
    if not whole:
        raise EngineError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes")
    return data


async def _error(response: aiohttp.ClientResponse, lost: type[EngineError]) -> EngineError:
    """Return what an answer with another status than 200 says."""
    kind, message = "", f"HTTP {response.status}"
    with suppress(wire.BodyInvalid):
        said = wire.parse_object(await _read(response)).get("error")
        if isinstance(said, dict):
            kind, message = str(said.get("type")), str(said.get("message"))
    return _ERRORS.get(kind, lost)(message)


def _name(update: WeightUpdate) -> tuple[int, int, Digest]:
    return update.base, update.version, update.digest
