"""The asynchronous RL loop: rollouts of the next step run while this one is learned and published.

Rollouts therefore come from weights that are one step behind, or more when an island is slow.  They
are asked for by the versions that will be fresh enough when they are used; what came of older ones
all the same, or does not fit its group, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from skerry.publisher.arrays import Served
from skerry.trainer.rl.groups import Fate, GroupRule, Judge, Judged
from skerry.trainer.rl.grpo import group_advantages
from skerry.trainer.rl.learner import Learner, Update
from skerry.trainer.rl.rollouts import (
    Ask,
    RolloutBatch,
    RolloutSource,
    Sampling,
    collect,
    whole_groups,
)
from skerry.trainer.rl.staleness import Staleness, token_lags
from skerry.trainer.rl.tally import Tally

logger = logging.getLogger(__name__)

Publish = Callable[[Mapping[str, Served], int], Awaitable[int]]  # weights, step -> version
Reward = Callable[[Sequence[int]], float]


class TrainingStalled(Exception):
    """Batch after batch held nothing to train on: the operator looks at the islands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Everything about a run but its learner, its gates and its reward."""

    sampling: Sampling = field(default_factory=Sampling)
    max_off_policy_steps: int = 2
    groups: GroupRule = field(default_factory=GroupRule)
    prompts_per_step: int = 4
    max_empty_batches: int = 3  # in a row, before TrainingStalled

    def __post_init__(self) -> None:
        if self.prompts_per_step < 1 or self.max_empty_batches < 1:
            raise ValueError(f"prompts_per_step and max_empty_batches: at least 1: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One optimizer step: what was learned, and in `tally` all that was asked for it."""

    step: int
    version: int
    reward: float
    tally: Tally
    update: Update
    seconds: Mapping[str, float]  # wait, learn, cast, publish


class RLTrainer:
    """Learns from rollouts that come through gates, and hands every step's weights to `publish`."""

    def __init__(
        self,
        learner: Learner,
        *,
        gates: Sequence[RolloutSource],
        prompts: Sequence[tuple[int, ...]],
        reward: Reward,
        publish: Publish,
        config: TrainerConfig | None = None,
        first_version: int = 0,
    ) -> None:
        """`first_version` is the published version of what `learner` starts with: of step 0."""
        if not gates or not prompts:
            raise ValueError("a trainer needs a gate and a prompt")
        self._config = config or TrainerConfig()
        self._gates = gates
        self._prompts = prompts
        self._reward = reward
        self._publish = publish
        self._staleness = Staleness(max_off_policy_steps=self._config.max_off_policy_steps)
        self._judge = Judge(
            staleness=self._staleness,
            rule=self._config.groups,
            samples=self._config.sampling.samples,
            routed=learner.can_learn,
        )
        if learner.replays and not self._config.sampling.routed_experts:
            raise ValueError("the learner replays routed experts: sampling must ask for them")
        self._step_of = {first_version: 0}
        self.learner = learner
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
                tally = Tally()
                for _ in range(self._config.max_empty_batches):
                    with clock.phase("wait"):
                        judged, counted = await self._judged(await ahead)
                    tally.add(counted)
                    if not counted.used:
                        ahead = self._request(self.step + 1)
                        continue
                    if self.step + 1 < last:
                        ahead = self._request(self.step + 2)
                    break
                else:
                    raise TrainingStalled(
                        f"step {self.step + 1}: none of {tally.fates.total()} rollouts could be "
                        f"used ({tally.dropped_by}), {tally.refused} were refused"
                    )
                metrics.append(await self._learn(judged, tally, clock))
                report(metrics[-1])
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
        return metrics

    def _request(self, step: int) -> asyncio.Task[RolloutBatch]:
        asks = whole_groups(self._prompts_of(step), self._config.sampling.samples)
        return asyncio.create_task(self._collect(asks, step))

    def _prompts_of(self, step: int) -> list[tuple[int, ...]]:
        n = self._config.prompts_per_step
        first = (step - 1) * n
        return [self._prompts[i % len(self._prompts)] for i in range(first, first + n)]

    async def _collect(self, asks: Sequence[Ask], step: int, turn: int = 0) -> RolloutBatch:
        """Ask for what will be fresh when `step` is taken, from the policy of the step before."""
        accepted = self._staleness.accepted(self._step_of, step - 1)
        sampling = self._config.sampling
        return await collect(self._gates, asks, sampling, accepted=accepted, step=step, turn=turn)

    async def _judged(self, batch: RolloutBatch) -> tuple[list[Judged], Tally]:
        """Judge a batch for the next step, and ask again for what is missing, by the rule."""
        rollouts, refused, refilled = list(batch.rollouts), batch.refused, 0
        judged = self._judge.judge(rollouts, self._step_of, self.step)
        prompts, samples = self._prompts_of(self.step + 1), self._config.sampling.samples
        for turn in range(1, self._config.groups.refills + 1):
            lacking = self._judge.lacking(judged, len(prompts))
            asks = [
                Ask(group=group, prompt=prompts[group], sample=turn * samples + n)
                for group, count in lacking.items()
                for n in range(count)
            ]
            if not asks:
                break
            more = await self._collect(asks, self.step + 1, turn)
            rollouts += more.rollouts
            refused += more.refused
            refilled += len(asks)
            judged = self._judge.judge(rollouts, self._step_of, self.step)
        return judged, Tally.of(judged, refused=refused, refilled=refilled)

    async def _learn(self, judged: Sequence[Judged], tally: Tally, clock: _Clock) -> StepMetrics:
        used = [one.rollout for one in judged if one.fate is Fate.USED]
        rewards = [self._reward(rollout.tokens) for rollout in used]
        with clock.phase("learn"):
            update = await asyncio.to_thread(
                self.learner.update,
                used,
                group_advantages(rewards, [rollout.group for rollout in used]),
                temperature=self._config.sampling.temperature,
                lags=[token_lags(r.spans, self._step_of, self.step) for r in used],
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
            tally=tally,
            update=update,
            seconds=dict(clock.seconds),
        )


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
