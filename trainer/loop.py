"""The asynchronous RL loop: rollouts of the next step run while this one is learned and published.

Rollouts therefore come from weights that are one step behind, or more when an island is slow.  Each
one keeps its versions; those of more than `max_off_policy_steps` are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from skerry.publisher.arrays import Served
from skerry.trainer.grpo import Staleness, group_advantages
from skerry.trainer.learner import Learner, LearnerConfig, Update
from skerry.trainer.rollouts import Rollout, RolloutBatch, RolloutSource, Sampling, collect
from skerry.trainer.source import SourceModel

logger = logging.getLogger(__name__)

Publish = Callable[[Mapping[str, Served], int], Awaitable[int]]  # weights, step -> version
Reward = Callable[[Sequence[int]], float]


class TrainingStalled(Exception):
    """Batch after batch held nothing to train on: the operator looks at the islands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Everything about a run but its model, its gates and its reward."""

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sampling: Sampling = field(default_factory=Sampling)
    max_off_policy_steps: int = 2
    prompts_per_step: int = 4
    max_empty_batches: int = 3  # in a row, before TrainingStalled

    def __post_init__(self) -> None:
        if self.prompts_per_step < 1 or self.max_empty_batches < 1:
            raise ValueError(f"prompts_per_step and max_empty_batches: at least 1: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One optimizer step.  `lags` and `versions` count rollouts, dropped ones too.

    A rollout that straddles an update counts for each of its versions; lag None is that of a
    version which this trainer never published.
    """

    step: int
    version: int
    reward: float
    used: int
    dropped: int
    refused: int
    lags: Mapping[int | None, int]
    versions: Mapping[int, int]
    update: Update
    seconds: Mapping[str, float]  # wait, learn, cast, publish


class RLTrainer:
    """Learns from rollouts that come through gates, and hands every step's weights to `publish`."""

    def __init__(
        self,
        source: SourceModel,
        *,
        gates: Sequence[RolloutSource],
        prompts: Sequence[tuple[int, ...]],
        reward: Reward,
        publish: Publish,
        config: TrainerConfig | None = None,
        first_version: int = 0,
    ) -> None:
        """`first_version` is the published version of `source`, that is, of step 0."""
        if not gates or not prompts:
            raise ValueError("a trainer needs a gate and a prompt")
        self._config = config or TrainerConfig()
        self._gates = gates
        self._prompts = prompts
        self._reward = reward
        self._publish = publish
        self._staleness = Staleness(max_off_policy_steps=self._config.max_off_policy_steps)
        self._step_of = {first_version: 0}
        self.learner = Learner(source.model(), self._config.learner)
        self.step = 0

    async def run(
        self, steps: int, report: Callable[[StepMetrics], None] = lambda _: None
    ) -> list[StepMetrics]:
        """Take `steps` optimizer steps, publish each, and return what they did."""
        last = self.step + steps
        metrics: list[StepMetrics] = []
        ahead = self._request(self.step + 1)
        try:
            while self.step < last:
                clock = _Clock()
                batch = _Sorted()
                for _ in range(self._config.max_empty_batches):
                    with clock.phase("wait"):
                        answers = await ahead
                    self._sort(answers, batch)
                    if not batch.used:
                        ahead = self._request(self.step + 1)
                        continue
                    if self.step + 1 < last:
                        ahead = self._request(self.step + 2)
                    break
                else:
                    raise TrainingStalled(
                        f"step {self.step + 1}: {batch.dropped} rollouts were too old and "
                        f"{batch.refused} refused, none is left"
                    )
                metrics.append(await self._learn(batch, clock))
                report(metrics[-1])
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
        return metrics

    def _request(self, step: int) -> asyncio.Task[RolloutBatch]:
        n = self._config.prompts_per_step
        first = (step - 1) * n
        prompts = [self._prompts[i % len(self._prompts)] for i in range(first, first + n)]
        return asyncio.create_task(collect(self._gates, prompts, self._config.sampling, step=step))

    def _sort(self, batch: RolloutBatch, into: _Sorted) -> None:
        into.refused += batch.refused
        for rollout in batch.rollouts:
            lag = self._staleness.lag(rollout.versions, self._step_of, self.step)
            into.lags[lag] += 1
            into.versions.update(rollout.versions)
            if self._staleness.admits(lag):
                into.used.append(rollout)
            else:
                into.dropped += 1

    async def _learn(self, batch: _Sorted, clock: _Clock) -> StepMetrics:
        rewards = [self._reward(rollout.tokens) for rollout in batch.used]
        advantages = group_advantages(rewards, [rollout.group for rollout in batch.used])
        with clock.phase("learn"):
            update = await asyncio.to_thread(
                self.learner.update,
                batch.used,
                advantages,
                temperature=self._config.sampling.temperature,
            )
        self.step += 1
        with clock.phase("cast"):
            weights = await asyncio.to_thread(self.learner.served)
        with clock.phase("publish"):
            version = await self._publish(weights, self.step)
        self._step_of[version] = self.step
        reward = sum(rewards) / len(rewards)
        logger.info("step=%d version=%d reward=%.4f", self.step, version, reward)
        return StepMetrics(
            step=self.step,
            version=version,
            reward=reward,
            used=len(batch.used),
            dropped=batch.dropped,
            refused=batch.refused,
            lags=dict(batch.lags),
            versions=dict(batch.versions),
            update=update,
            seconds=dict(clock.seconds),
        )


@dataclass(slots=True, kw_only=True)
class _Sorted:
    """One step's rollouts, by what becomes of them."""

    used: list[Rollout] = field(default_factory=list)
    dropped: int = 0
    refused: int = 0
    lags: Counter[int | None] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)


class _Clock:
    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began
