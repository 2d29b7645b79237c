"""A stand-in engine that keeps weights as bytes and can be told to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import numpy as np

from skerry.codec.digest import Digest
from skerry.codec.header import header_size
from skerry.codec.layout import Layout, Shard
from skerry.codec.tensors import TensorSpec
from skerry.codec.weights import digest_weights
from skerry.inference.engine import (
    EngineBroken,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    WeightUpdate,
)

Trouble = Callable[["ByteEngine"], None]


class ByteEngine:
    """Implements `skerry.inference.engine.Engine`; every token is the version that made it.

    `trouble` maps a method's name to something called there, which may raise.
    """

    def __init__(self) -> None:
        self.loads = 0
        self.installs: list[int] = []
        self.paused = False
        self.trouble: dict[str, Trouble] = {}
        self._version: int | None = None
        self._weights: dict[str, np.ndarray] = {}
        self._layout: Layout | None = None
        self._staged: WeightUpdate | None = None
        self._installed: WeightUpdate | None = None

    async def load(self, directory: Path, version: int) -> None:
        self._version = None
        self._meet("load")
        shards, weights = [], {}
        for path in sorted(directory.glob("*.safetensors")):
            data = path.read_bytes()
            raw = data[: header_size(data[:8], len(data))]
            shards.append(Shard(name=path.name, size=len(data), header=raw))
            weights[path.name] = np.frombuffer(bytearray(data), np.uint8)
        self._layout, self._weights = Layout(shards=tuple(shards)), weights
        self._version = version
        self.loads += 1

    async def stage(self, update: WeightUpdate) -> None:
        self._meet("stage")
        if update.base != self._version:
            raise InstallFailed(f"base {update.base} expected, found {self._version}")
        for changes in update.changes:
            words = changes.spec.view(self._read(changes.spec))
            if not np.array_equal(words[changes.positions], changes.old):
                raise InstallFailed(f"{changes.spec.name}: other old bits")
        self._staged = update

    async def pause(self) -> None:
        self._meet("pause")
        self.paused = True

    async def install(self, update: WeightUpdate) -> None:
        assert self.paused
        assert self._staged is update
        self._meet("install")
        for number, changes in enumerate(update.changes):
            if number == 1 and "half" in self.trouble:
                self._version = None
                self._meet("half")
            changes.spec.view(self._read(changes.spec))[changes.positions] = changes.new
        self._version = update.version
        self._installed = update
        self.installs.append(update.version)

    async def undo(self, update: WeightUpdate) -> None:
        assert self.paused
        assert self._installed is update
        self._meet("undo")
        for changes in update.changes:
            changes.spec.view(self._read(changes.spec))[changes.positions] = changes.old
        self._version = update.base

    async def resume(self) -> None:
        self._meet("resume")
        self.paused, self._installed = False, None

    @property
    def version(self) -> int | None:
        return self._version

    @property
    def tensors(self) -> Sequence[TensorSpec]:
        """Where it has each tensor."""
        return () if self._layout is None else self._layout.tensors

    async def weights_digest(self) -> Digest:
        if self._layout is None:
            raise EngineBroken("nothing is loaded")
        return digest_weights(self._layout, self._read).version()

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        for number in range(request.max_tokens):
            while self.paused:
                await asyncio.sleep(0)
            if self._version is None:
                raise EngineBroken("no weights")
            last = number + 1 == request.max_tokens
            yield GeneratedToken(
                token=self._version,
                logprob=0.0,
                version=self._version,
                finish_reason="length" if last else None,
            )
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.paused = False

    def _read(self, spec: TensorSpec) -> np.ndarray:
        return self._weights[spec.file][spec.offset : spec.offset + spec.nbytes]

    def _meet(self, method: str) -> None:
        if method in self.trouble:
            self.trouble[method](self)


def failing(error: Exception, times: int = 1) -> Trouble:
    """Return trouble that raises `error` the first `times` times."""
    left = [times]

    def meet(engine: ByteEngine) -> None:
        if left[0]:
            left[0] -= 1
            raise error

    return meet
