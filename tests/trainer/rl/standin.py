"""A gate that is told to lag, or to refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skerry.benchmarks.engine_gate import Answer, EngineGate
from skerry.inference.errors import WeightVersionGone
from skerry.publisher.arrays import ServedTensor


@dataclass(kw_only=True)
class UnreliableGate(EngineGate):
    """Keeps what it was asked, and installs what is published `behind` versions late."""

    behind: int = 0
    refuse: bool = False
    refuse_one_of: int = 0  # so many requests, if it is above 0
    asked: list[dict[str, object]] = field(default_factory=list)
    _pending: list[Mapping[str, ServedTensor]] = field(default_factory=list)
    _swapping: asyncio.Lock = field(default_factory=asyncio.Lock)

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
        self.asked.append({"prompt": tuple(prompt), "accepted": accepted, "seed": seed})
        turn = self.refuse_one_of and len(self.asked) % self.refuse_one_of == 0
        if self.refuse or turn:
            raise WeightVersionGone("410: every accepted version is gone")
        return await super().complete(
            prompt,
            accepted=accepted,
            wait_s=wait_s,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            routed_experts=routed_experts,
        )

    async def install(self, weights: Mapping[str, ServedTensor]) -> None:
        async with self._swapping:
            self._pending.append(weights)
            while len(self._pending) > self.behind:
                await super().install(self._pending.pop(0))
