"""Router replay: the engine's choice of experts reaches the trainer's forward pass, exactly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from skerry.benchmarks.engine_gate import EngineGate
from skerry.inference.engine import GenerationRequest, RequestUnsupported
from skerry.inference.engines import CpuEngine
from skerry.inference.routed import RoutedExpertsInvalid, decode_routed
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.loop import RLTrainer, TrainerConfig
from skerry.trainer.rl.replay import replayed
from skerry.trainer.rl.rollouts import Ask, Rollout, Sampling, collect
from skerry.trainer.tiny import tiny_llama, tiny_moe
from tests.inference.engines.checkpoints import run, write_checkpoint

SOURCE = tiny_moe(1, layers=3)
PROMPTS = ((5, 6, 7), (300,), (9, 10, 11, 12, 13))


def rollouts(tmp_path: Path, then: Callable[[list[Rollout]], Awaitable[None]]) -> None:
    """Make rollouts of several lengths, all at once, and pass them on."""

    async def scenario() -> None:
        served = SOURCE.served()
        path = write_checkpoint(tmp_path / "moe", served, SOURCE.side_files)
        gate = await EngineGate.open(path, served)
        try:
            sampling = Sampling(max_tokens=12, seed=3, routed_experts=True)
            asks = [Ask(group=g, prompt=p, sample=0) for g, p in enumerate(PROMPTS)]
            batch = await collect([gate], asks, sampling, accepted="0..", step=1)
            assert batch.refused == 0
            await then(list(batch.rollouts))
        finally:
            await gate.engine.close()

    run(scenario)


def learner(*, replay: bool) -> Learner:
    return Learner(SOURCE.model(), LearnerConfig(bf16=False, replay=replay))


def test_every_position_but_the_last_has_its_experts_prompt_and_output_alike(
    tmp_path: Path,
) -> None:
    async def then(made: list[Rollout]) -> None:
        model = SOURCE.model().bfloat16()
        for rollout in made:
            assert rollout.routed_experts is not None
            text = [*rollout.prompt, *rollout.tokens[:-1]]
            found = decode_routed(rollout.routed_experts, shape=(len(text), 3, 2), count=8)
            chosen = []

            def choose(layer: int, scores: torch.Tensor) -> torch.Tensor:
                chosen.append(scores.topk(2, dim=-1).indices)  # noqa: B023
                return chosen[-1]  # noqa: B023

            with torch.no_grad():
                model.hidden(torch.tensor([text]), torch.arange(len(text)), choose=choose)
            again = torch.stack(chosen, dim=2)[0]
            # One token at a time rounds otherwise than all at once: near ties may fall otherwise.
            same = (again == torch.from_numpy(found.astype("i8"))).all(dim=-1).float().mean()
            assert same > 0.9

    rollouts(tmp_path, then)


def test_the_trainer_repeats_exactly_the_choices_that_came(tmp_path: Path) -> None:
    async def then(made: list[Rollout]) -> None:
        config = SOURCE.config
        choose = replayed(made, config, torch.device("cpu"))
        for row, rollout in enumerate(made):
            assert rollout.routed_experts is not None
            length = len(rollout.prompt) + len(rollout.tokens) - 1
            found = decode_routed(rollout.routed_experts, shape=(length, 3, 2), count=8)
            for layer in range(3):
                scores = torch.zeros(len(made), 99, 8)
                assert choose(layer, scores)[row, :length].tolist() == found[:, layer].tolist()

    rollouts(tmp_path, then)


def test_with_replay_the_trainer_is_nearer_to_the_engine_that_computes_otherwise(
    tmp_path: Path,
) -> None:
    """Against a router that scores all experts nearly alike, as at a tie."""

    async def then(made: list[Rollout]) -> None:
        one = learner(replay=True)
        with torch.no_grad():
            for name, parameter in one.model.named_parameters():
                if name.endswith("gate.weight"):
                    noise = torch.Generator().manual_seed(1)
                    parameter.add_(0.01 * torch.randn(parameter.shape, generator=noise))
        behaviour = torch.tensor([p for r in made for p in r.logprobs])
        apart = {
            replay: (one.logprobs(made, replay=replay) - behaviour).abs().mean().item()
            for replay in (False, True)
        }
        assert apart[True] < apart[False]

    rollouts(tmp_path, then)


def test_padding_does_not_show_with_replay(tmp_path: Path) -> None:
    async def then(made: list[Rollout]) -> None:
        one = learner(replay=True)
        alone = torch.cat([one.logprobs([single]) for single in made])
        torch.testing.assert_close(one.logprobs(made), alone, atol=1e-4, rtol=0)

    rollouts(tmp_path, then)


def test_routed_experts_of_another_model_or_none_are_refused(tmp_path: Path) -> None:
    async def then(made: list[Rollout]) -> None:
        one = learner(replay=True)
        with pytest.raises(RoutedExpertsInvalid, match="expected"):
            one.logprobs([replace(made[0], routed_experts=made[2].routed_experts)])
        with pytest.raises(ValueError, match="without routed experts"):
            one.logprobs([replace(made[0], routed_experts=None)])
        assert one.can_learn(made[0])
        for bad in (None, b"", made[2].routed_experts):
            wrong = replace(made[0], routed_experts=bad)
            assert not one.can_learn(wrong), "one island's nonsense must not end the training"
            assert learner(replay=False).can_learn(wrong)

    rollouts(tmp_path, then)


def test_a_dense_model_routes_nothing_and_says_so(tmp_path: Path) -> None:
    dense = tiny_llama(0, layers=1)
    with pytest.raises(ValueError, match="no experts"):
        Learner(dense.model(), LearnerConfig(replay=True))

    async def scenario() -> None:
        engine = CpuEngine(threads=1)
        try:
            path = write_checkpoint(tmp_path / "dense", dense.served(), dense.side_files)
            await engine.load(path, 0)
            asked = GenerationRequest(prompt=(5,), max_tokens=2, routed_experts=True)
            with pytest.raises(RequestUnsupported, match="no experts"):
                _ = [token async for token in engine.generate(asked)]
        finally:
            await engine.close()

    run(scenario)


def test_a_run_with_replay_learns_through_the_gates(tmp_path: Path) -> None:
    async def scenario() -> None:
        served = SOURCE.served()
        path = write_checkpoint(tmp_path / "moe", served, SOURCE.side_files)
        gate = await EngineGate.open(path, served)

        async def publish(weights: Mapping[str, ServedTensor], step: int) -> int:
            await gate.install(weights)
            return gate.version

        def trainer(sampling: Sampling) -> RLTrainer:
            return RLTrainer(
                learner(replay=True),
                gates=[gate],
                prompts=PROMPTS,
                reward=lambda tokens: float(np.mean(tokens)),
                publish=publish,
                config=TrainerConfig(sampling=sampling, prompts_per_step=2),
            )

        try:
            with pytest.raises(ValueError, match="must ask for them"):
                trainer(Sampling())
            metrics = await trainer(Sampling(max_tokens=6, routed_experts=True)).run(2)
            assert [m.tally.used for m in metrics] == [8, 8]
            assert metrics[-1].update.grad_norm > 0
        finally:
            await gate.engine.close()

    run(scenario)
