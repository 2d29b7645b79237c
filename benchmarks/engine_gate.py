"""A gate without HTTP: one engine in this process, which serves whichever version it has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from skerry.codec.tensors import TensorChanges
from skerry.codec.weights import digest_weights
from skerry.inference.attribution import Span, spans_of
from skerry.inference.engine import GenerationRequest, WeightUpdate
from skerry.inference.engines import CpuEngine
from skerry.publisher import Checkpoint
from skerry.publisher.arrays import ServedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    tokens: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    routed_experts: bytes | None


@dataclass(kw_only=True)
class EngineGate:
    """A `RolloutSource` over one engine; versions count what was installed."""

    engine: CpuEngine
    weights: Mapping[str, ServedTensor]
    version: int = 0

    @classmethod
    async def open(cls, directory: Path, weights: Mapping[str, ServedTensor]) -> Self:
        """Load version 0: a checkpoint, and what it was made of."""
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
        routed_experts: bool,
    ) -> Answer:
        request = GenerationRequest(
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            routed_experts=routed_experts,
        )
        tokens = [token async for token in self.engine.generate(request)]
        return Answer(
            tokens=[token.token for token in tokens],
            logprobs=[token.logprob for token in tokens],
            spans=spans_of(token.version for token in tokens),
            routed_experts=tokens[-1].routed_experts if tokens else None,
        )

    async def install(self, weights: Mapping[str, ServedTensor]) -> None:
        """Serve `weights` as the next version."""
        update = await asyncio.to_thread(_update, self.weights, weights, self.version + 1)
        await self.engine.stage(update)
        await self.engine.pause()
        try:
            await self.engine.install(update)
        finally:
            await self.engine.resume()
        self.weights, self.version = weights, update.version


def _update(
    old: Mapping[str, ServedTensor], new: Mapping[str, ServedTensor], version: int
) -> WeightUpdate:
    checkpoint = Checkpoint.from_arrays(new)
    changes = []
    for spec in checkpoint.layout.tensors:
        before, after = spec.view(old[spec.name].raw), spec.view(new[spec.name].raw)
        positions = np.flatnonzero(before != after)
        if positions.size:
            changes.append(
                TensorChanges(
                    spec=spec, positions=positions, old=before[positions], new=after[positions]
                )
            )
    digest = digest_weights(checkpoint.layout, checkpoint.read).version()
    return WeightUpdate(base=version - 1, version=version, digest=digest, changes=changes)
