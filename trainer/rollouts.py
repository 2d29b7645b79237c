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
    ) -> Completion:
        """Return one completion by accepted versions.  Raises RolloutError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What is asked of the gates in every step."""

    samples: int = 4
    max_tokens: int = 16
    temperature: float = 1.0
    accepted: str = "latest-2.."
    wait_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.max_tokens < 1:
            raise ValueError(f"at least one sample of one token: {self}")
        if self.temperature <= 0:
            raise ValueError(f"temperature: expected more than 0, found {self.temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled answer, its behaviour log-probabilities, and the versions that made it."""

    group: int  # the index of its prompt within the batch
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens with {len(self.logprobs)} log-probs")

    @property
    def versions(self) -> frozenset[int]:
        return frozenset(span.version for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The answers to one step's requests; `refused` is how many got none."""

    rollouts: tuple[Rollout, ...]
    refused: int


async def collect(
    gates: Sequence[RolloutSource],
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    *,
    step: int,
) -> RolloutBatch:
    """Ask for `samples` answers to every prompt, the prompts spread over the gates.

    The gates take turns from step to step, so that none keeps a prompt to itself.
    """
    asked = [
        _one(gates[(step + group) % len(gates)], group, prompt, sampling, _seed(sampling, *at))
        for group, prompt in enumerate(prompts)
        for at in ((step, group, sample) for sample in range(sampling.samples))
    ]
    answers = await asyncio.gather(*asked)
    rollouts = tuple(answer for answer in answers if answer is not None)
    return RolloutBatch(rollouts=rollouts, refused=len(answers) - len(rollouts))


async def _one(
    gate: RolloutSource, group: int, prompt: tuple[int, ...], sampling: Sampling, seed: int
) -> Rollout | None:
    try:
        answer = await gate.complete(
            prompt,
            accepted=sampling.accepted,
            wait_s=sampling.wait_s,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=seed,
        )
    except RolloutError as error:
        logger.warning("rollout of prompt %d refused: %s", group, error)
        return None
    if not answer.tokens:
        logger.warning("rollout of prompt %d is empty", group)
        return None
    return Rollout(
        group=group,
        prompt=prompt,
        tokens=tuple(answer.tokens),
        logprobs=tuple(answer.logprobs),
        spans=tuple(answer.spans),
    )


def _seed(sampling: Sampling, step: int, group: int, sample: int) -> int:
    words = np.random.SeedSequence([sampling.seed, step, group, sample])
    return int(words.generate_state(1)[0])
