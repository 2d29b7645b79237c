"""Rollouts through the gates: who is asked for what, and what came back.

Every rollout keeps the versions that made its tokens; a refused one is counted, never replaced by
tokens of some other version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from skerry.inference.attribution import Span
from skerry.inference.errors import RolloutError

logger = logging.getLogger(__name__)


class Completion(Protocol):
    """What a gate answers."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[float]: ...
    @property
    def spans(self) -> Sequence[Span]: ...
    @property
    def routed_experts(self) -> bytes | None: ...


class RolloutSource(Protocol):
    """One gate: `skerry.inference.client.RolloutClient`, or a stand-in for it."""

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
    ) -> Completion:
        """Return one completion by accepted versions.  Raises RolloutError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What is asked of the gates in every step: `samples` members for every group."""

    samples: int = 4
    max_tokens: int = 16
    temperature: float = 1.0
    wait_s: float = 30.0
    seed: int = 0
    routed_experts: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1 or self.max_tokens < 1:
            raise ValueError(f"at least one sample of one token: {self}")
        if self.temperature <= 0:
            raise ValueError(f"temperature: expected more than 0, found {self.temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled answer, its behaviour log-probabilities, and the versions that made it.

    Each log-probability is that of the version whose span the token lies in.  `routed_experts` are
    bytes that only `replay` reads.
    """

    group: int  # the index of its prompt within the batch
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...]
    routed_experts: bytes | None = None

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens with {len(self.logprobs)} log-probs")

    @property
    def versions(self) -> frozenset[int]:
        return frozenset(span.version for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One rollout that is wanted: member `sample` of the group that a prompt makes."""

    group: int
    prompt: tuple[int, ...]
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The answers to some asks; `refused` is how many got none."""

    rollouts: tuple[Rollout, ...]
    refused: int


def whole_groups(prompts: Sequence[tuple[int, ...]], samples: int) -> list[Ask]:
    """Return the asks for `samples` members of each prompt's group."""
    return [
        Ask(group=group, prompt=prompt, sample=sample)
        for group, prompt in enumerate(prompts)
        for sample in range(samples)
    ]


async def collect(
    gates: Sequence[RolloutSource],
    asks: Sequence[Ask],
    sampling: Sampling,
    *,
    accepted: str,
    step: int,
    turn: int = 0,
) -> RolloutBatch:
    """Ask for rollouts by `accepted` versions, the groups spread over the gates.

    The gates take turns from step to step, so that none keeps a prompt to itself, and with each
    `turn`, so that what one did not give is asked of another.
    """
    answers = await asyncio.gather(
        *(
            _one(gates[(step + ask.group + turn) % len(gates)], ask, sampling, accepted, step)
            for ask in asks
        )
    )
    rollouts = tuple(answer for answer in answers if answer is not None)
    return RolloutBatch(rollouts=rollouts, refused=len(answers) - len(rollouts))


async def _one(
    gate: RolloutSource, ask: Ask, sampling: Sampling, accepted: str, step: int
) -> Rollout | None:
    try:
        answer = await gate.complete(
            ask.prompt,
            accepted=accepted,
            wait_s=sampling.wait_s,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=_seed(sampling, step, ask.group, ask.sample),
            routed_experts=sampling.routed_experts,
        )
    except RolloutError as error:
        logger.warning("rollout of prompt %d refused: %s", ask.group, error)
        return None
    if not answer.tokens:
        logger.warning("rollout of prompt %d is empty", ask.group)
        return None
    return Rollout(
        group=ask.group,
        prompt=ask.prompt,
        tokens=tuple(answer.tokens),
        logprobs=tuple(answer.logprobs),
        spans=tuple(answer.spans),
        routed_experts=answer.routed_experts,
    )


def _seed(sampling: Sampling, step: int, group: int, sample: int) -> int:
    words = np.random.SeedSequence([sampling.seed, step, group, sample])
    return int(words.generate_state(1)[0])
