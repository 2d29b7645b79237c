"""A gate without HTTP: a real engine in this process behind the trainer's port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skerry.inference.attribution import Span, spans_of
from skerry.inference.engine import GenerationRequest
from skerry.inference.engines import CpuEngine
from skerry.inference.errors import WeightVersionGone
from skerry.publisher.arrays import ServedTensor
from tests.inference.engines.checkpoints import swap, update_between


@dataclass(frozen=True, kw_only=True)
class Answer:
    tokens: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]


@dataclass(kw_only=True)
class EngineGate:
    """Serves one engine and installs what is published into it, `behind` versions late."""

    engine: CpuEngine
    weights: Mapping[str, ServedTensor]
    behind: int = 0
    refuse: bool = False
    version: int = 0
    asked: list[dict[str, object]] = field(default_factory=list)
    _pending: list[Mapping[str, ServedTensor]] = field(default_factory=list)
    _swapping: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def open(cls, directory: Path, weights: Mapping[str, ServedTensor]) -> EngineGate:
        engine = CpuEngine(threads=1)
        await engine.load(directory, 0)
        return cls(engine=engine, weights=weights)

    async def complete(
        self,
        prompt: Sequence[int],
        *,
        accepted: str,
        wait_s: float,
        max_tokens: int,
        temperature: float,
        seed: int | None,
    ) -> Answer:
        self.asked.append({"prompt": tuple(prompt), "accepted": accepted, "seed": seed})
        if self.refuse:
            raise WeightVersionGone("410: every accepted version is gone")
        request = GenerationRequest(
            prompt=tuple(prompt), max_tokens=max_tokens, temperature=temperature, seed=seed
        )
        tokens = [token async for token in self.engine.generate(request)]
        return Answer(
            tokens=[token.token for token in tokens],
            logprobs=[token.logprob for token in tokens],
            spans=spans_of(token.version for token in tokens),
        )

    async def install(self, weights: Mapping[str, ServedTensor]) -> None:
        async with self._swapping:
            self._pending.append(weights)
            while len(self._pending) > self.behind:
                new = self._pending.pop(0)
                await swap(
                    self.engine,
                    update_between(self.weights, new, base=self.version, version=self.version + 1),
                )
                self.weights, self.version = new, self.version + 1
