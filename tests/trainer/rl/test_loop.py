"""The RL loop over real engines: it learns, it lags, it drops what is stale, it counts it all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from skerry.inference.client import RolloutClient
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.prompts import QUESTIONS
from skerry.trainer.rl.groups import Fate, GroupRule, Missing
from skerry.trainer.rl.grpo import LetterReward
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.loop import RLTrainer, StepMetrics, TrainerConfig, TrainingStalled
from skerry.trainer.rl.rollouts import RolloutSource, Sampling
from skerry.trainer.tiny import tiny_llama
from tests.inference.engines.checkpoints import digest_of, run, write_checkpoint
from tests.trainer.rl.standin import UnreliableGate

SOURCE = tiny_llama(0, layers=2)
TOKENIZER = SOURCE.tokenizer()
PROMPTS = [tuple(TOKENIZER.encode(question).ids) for question in QUESTIONS]


def config(
    *,
    samples: int = 4,
    max_off_policy_steps: int = 2,
    max_tokens: int = 8,
    groups: GroupRule | None = None,
) -> TrainerConfig:
    return TrainerConfig(
        groups=groups or GroupRule(),
        sampling=Sampling(samples=samples, max_tokens=max_tokens, seed=1),
        prompts_per_step=4,
        max_off_policy_steps=max_off_policy_steps,
    )


def learner(lr: float = 1e-6) -> Learner:
    return Learner(SOURCE.model(), LearnerConfig(lr=lr, bf16=False))


class World:
    """Some gates over one published history."""

    def __init__(self, gates: list[UnreliableGate]) -> None:
        self.gates = gates
        self.published: list[Mapping[str, ServedTensor]] = [SOURCE.served()]
        self.steps = [0]

    async def publish(self, weights: Mapping[str, ServedTensor], step: int) -> int:
        self.published.append(weights)
        self.steps.append(step)
        for gate in self.gates:
            await gate.install(weights)
        return len(self.published) - 1

    def trainer(self, configuration: TrainerConfig, *, lr: float = 1e-6) -> RLTrainer:
        return RLTrainer(
            learner(lr),
            gates=self.gates,
            prompts=PROMPTS,
            reward=LetterReward(TOKENIZER),
            publish=self.publish,
            config=configuration,
        )


async def world(stack: AsyncExitStack, directory: Path, gates: int = 1) -> World:
    served = SOURCE.served()
    opened = []
    for n in range(gates):
        path = write_checkpoint(directory / str(n), served, SOURCE.side_files)
        gate = await UnreliableGate.open(path, served)
        stack.push_async_callback(gate.engine.close)
        opened.append(gate)
    return World(opened)


def test_the_client_of_the_gate_is_a_source_of_rollouts() -> None:
    source: RolloutSource = RolloutClient("http://127.0.0.1:1")
    assert isinstance(source, RolloutClient)  # the assignment is the claim: mypy checks it


def test_the_reward_rises_and_the_islands_follow_bit_for_bit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path, gates=2)
            trainer = w.trainer(config(samples=12), lr=5e-3)
            seen: list[StepMetrics] = []
            metrics = await trainer.run(16, seen.append)
            assert seen == metrics
            assert w.steps == list(range(17))
            first = sum(m.reward for m in metrics[:3]) / 3
            last = sum(m.reward for m in metrics[-3:]) / 3
            assert last > 2 * first
            for gate in w.gates:
                digest = await gate.engine.weights_digest()
                assert digest == digest_of(w.published[-1]) == digest_of(trainer.learner.served())

    run(scenario)


def test_rollouts_run_ahead_and_every_one_is_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path, gates=2)
            metrics = await w.trainer(config()).run(4)
            assert [m.step for m in metrics] == [m.version for m in metrics] == [1, 2, 3, 4]
            assert metrics[0].tally.lags == {0: 16}
            # Asked for before the step before was published, so never of the newest version alone.
            assert all(0 < max(filter(None, m.tally.lags)) <= 2 for m in metrics[1:])
            for m in metrics:
                counted = m.tally
                assert counted.used + counted.dropped == counted.lags.total() == 16
                assert counted.refused == counted.refilled == 0
                assert counted.versions.total() >= 16
                assert 16 <= sum(s.tokens for s in m.update.by_lag.values()) <= 16 * 8
                assert set(m.update.by_lag) <= {0, 1, 2}
                assert set(m.seconds) == {"wait", "learn", "cast", "publish"}
            for gate in w.gates:
                assert len(gate.asked) == 4 * 8, "the gates share the prompts evenly"
                # Fresh enough for the step that they are used in, whatever is newest by then.
                assert [asked["accepted"] for asked in gate.asked] == ["0.."] * 24 + ["1.."] * 8
            seeds = [asked["seed"] for gate in w.gates for asked in gate.asked]
            assert len(set(seeds)) == len(seeds)

    run(scenario)


def test_stale_rollouts_are_dropped_and_stall_the_training_in_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path)
            w.gates[0].behind = 100  # an island that never follows
            trainer = w.trainer(config(max_off_policy_steps=2))
            with pytest.raises(TrainingStalled, match=r"none of 48 rollouts could .*'stale': 48"):
                await trainer.run(10)
            assert trainer.step == 3, "versions 1, 2 and 3 were learned from version 0"

    run(scenario)


def test_a_gate_that_refuses_costs_its_own_share_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path, gates=2)
            w.gates[1].refuse = True
            metrics = await w.trainer(config()).run(2)
            assert [(m.tally.used, m.tally.refused) for m in metrics] == [(8, 8), (8, 8)]

    run(scenario)


def test_a_version_that_was_never_published_teaches_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path)
            trainer = RLTrainer(
                learner(),
                gates=w.gates,
                prompts=PROMPTS,
                reward=LetterReward(TOKENIZER),
                publish=w.publish,
                config=config(),
                first_version=7,
            )
            with pytest.raises(TrainingStalled):
                await trainer.run(1)
            assert trainer.step == 0

    run(scenario)


def test_rollouts_in_flight_end_with_a_failed_publish(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path)

            async def publish(weights: Mapping[str, ServedTensor], step: int) -> int:
                raise ConnectionError("the store is away")

            trainer = RLTrainer(
                learner(),
                gates=w.gates,
                prompts=PROMPTS,
                reward=LetterReward(TOKENIZER),
                publish=publish,
                config=config(),
            )
            with pytest.raises(ConnectionError):
                await trainer.run(3)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scenario)


def test_a_gate_that_refuses_is_replaced_by_another_when_groups_are_refilled(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path, gates=2)
            w.gates[1].refuse = True
            rule = GroupRule(missing=Missing.REFILL)
            metrics = await w.trainer(config(groups=rule)).run(2)
            for m in metrics:
                assert (m.tally.used, m.tally.refused, m.tally.refilled) == (16, 8, 8)
            seeds = [asked["seed"] for gate in w.gates for asked in gate.asked]
            assert len(set(seeds)) == len(seeds), "a refilled member is no copy"

    run(scenario)


def test_groups_are_dropped_whole_when_the_rule_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            w = await world(stack, tmp_path, gates=2)
            w.gates[1].refuse_one_of = 4
            (step,) = await w.trainer(config(groups=GroupRule(missing=Missing.DROP))).run(1)
            assert step.tally.refused == 2
            assert step.tally.used == 8
            assert step.tally.fates[Fate.INCOMPLETE] == 6
            assert step.tally.dropped_share == 6 / 14

    run(scenario)
