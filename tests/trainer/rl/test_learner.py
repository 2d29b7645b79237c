"""The learner sees what the engine saw, and moves the master weights the way the reward points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from skerry.inference.attribution import Span
from skerry.inference.engines import CpuEngine
from skerry.trainer.rl.learner import Learner, LearnerConfig, bf16_is_faster
from skerry.trainer.rl.rollouts import Rollout
from skerry.trainer.tiny import tiny_llama
from tests.inference.engines.checkpoints import complete, run, write_checkpoint

SOURCE = tiny_llama(0, layers=2)


def rollout(
    prompt: tuple[int, ...], tokens: tuple[int, ...], logprob: float = -6.0, group: int = 0
) -> Rollout:
    return Rollout(
        group=group,
        prompt=prompt,
        tokens=tokens,
        logprobs=(logprob,) * len(tokens),
        spans=(Span(version=0, start=0, end=len(tokens)),),
    )


MIXED = [rollout((3, 4, 5), (7, 8)), rollout((9,), (10, 11, 12, 13, 14)), rollout((6, 6), (6,))]


def learner(**fields: object) -> Learner:
    return Learner(SOURCE.model(), LearnerConfig(bf16=False, **fields))  # type: ignore[arg-type]


def test_log_probabilities_are_those_the_engine_sampled_with(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", SOURCE.served(), SOURCE.side_files)

    async def scenario() -> None:
        engine = CpuEngine(threads=1)
        try:
            await engine.load(directory, 0)
            for temperature in (1.0, 0.7):
                made = await complete(
                    engine, (5, 6, 7), max_tokens=20, temperature=temperature, seed=1
                )
                tokens = tuple(token.token for token in made)
                found = learner().logprobs([rollout((5, 6, 7), tokens)], temperature=temperature)
                np.testing.assert_allclose(
                    found.detach().numpy(), [token.logprob for token in made], atol=0.02
                )
        finally:
            await engine.close()

    run(scenario)


def test_padding_and_chunks_do_not_show() -> None:
    long = rollout((1, 2), tuple(range(100, 220))), rollout((8,), tuple(range(50, 250)))
    many = [*MIXED, *long]
    one = learner()
    together = one.logprobs(many)
    alone = torch.cat([one.logprobs([single]) for single in many])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    whole, parts = learner(micro_batch=16, lr=1e-3), learner(micro_batch=1, lr=1e-3)
    advantages = [1.0, -0.5, 0.25]
    assert whole.update(MIXED, advantages).loss == pytest.approx(
        parts.update(MIXED, advantages).loss, rel=1e-4
    )
    for (name, a), b in zip(whole.model.named_parameters(), parts.model.parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-3)


def test_an_update_makes_praised_tokens_likelier_and_blamed_ones_less_likely() -> None:
    one = learner(lr=1e-3)
    good, bad = rollout((3, 4, 5), (7, 8), -6.0), rollout((9,), (10, 11), -6.0)
    before = one.logprobs([good, bad]).detach()
    update = one.update([good, bad], [1.0, -1.0])
    after = one.logprobs([good, bad]).detach()
    assert (after[:2] > before[:2]).all()
    assert (after[2:] < before[2:]).all()
    assert update.grad_norm > 0


def test_gradients_are_clipped_to_the_norm() -> None:
    one = learner(lr=0.0, max_grad_norm=1e-3)
    update = one.update(MIXED, [1.0, -1.0, 1.0])
    norms = [p.grad.norm() for p in one.model.parameters() if p.grad is not None]
    assert update.grad_norm > 1e-3
    assert float(torch.stack(norms).norm()) == pytest.approx(1e-3, rel=1e-2)


def test_a_small_step_from_the_grid_changes_few_served_words() -> None:
    one = learner(lr=1e-6)
    before = one.served()
    one.update(MIXED, [1.0, -1.0, 1.0])
    after = one.served()
    changed = sum(int(np.count_nonzero(before[n].data != after[n].data)) for n in before)
    total = sum(tensor.data.size for tensor in before.values())
    assert 0 < changed < 0.2 * total


def test_master_weights_are_float32_only() -> None:
    with pytest.raises(TypeError, match="float32"):
        Learner(SOURCE.model().bfloat16(), LearnerConfig())


def test_bf16_and_fp32_forward_passes_agree() -> None:
    wide, narrow = learner(), Learner(SOURCE.model(), LearnerConfig(bf16=True))
    torch.testing.assert_close(wide.logprobs(MIXED), narrow.logprobs(MIXED), atol=0.02, rtol=0)
    assert bf16_is_faster(torch.device("cpu")) in (True, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA or ROCm device")
def test_on_an_accelerator_a_learner_serves_what_lies_there_with_the_same_bits() -> None:
    here, there = learner(), learner(device="cuda")
    served = there.served()
    assert {tensor.device.type for tensor in served.values()} == {"cuda"}
    for name, array in here.served().items():
        assert np.array_equal(served[name].cpu().view(torch.int16).numpy().view("<u2"), array.data)
    torch.testing.assert_close(
        there.logprobs(MIXED).cpu(), here.logprobs(MIXED), atol=1e-3, rtol=1e-3
    )
    assert there.update(MIXED, [1.0, -0.5, 0.25]).grad_norm > 0
