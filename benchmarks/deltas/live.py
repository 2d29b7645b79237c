"""A live run on real weights: supervised fine-tuning of the demo's model by the demo's learner.

The text is the manual that Python brings along (`pydoc_data.topics`), so that every machine has it.
Gradients are real and small-batch; the learning rate follows a schedule, which the demo's does not.
Reinforcement learning is recorded by `trace` and measured from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch.nn.utils import clip_grad_norm_

from skerry.benchmarks.deltas.states import State
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.rollouts import Rollout
from skerry.trainer.source import SourceModel

Schedule = Callable[[int], float]  # step, counted from 1 -> learning rate

_TEXT_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How many sequences a step learns from, and how long they are."""

    sequences: int = 4
    tokens: int = 32


def constant(lr: float) -> Schedule:
    return lambda step: lr


def falling(high: float, settled: float, over: int) -> Schedule:
    """Return a schedule that falls geometrically from `high` at step 1 to `settled`."""

    def lr(step: int) -> float:
        share: float = min((step - 1) / max(over, 1), 1.0)
        return float(high * (settled / high) ** share)

    return lr


def tuned(
    source: SourceModel,
    schedule: Schedule,
    count: int,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    batch: Batch | None = None,
) -> Iterator[State]:
    """Yield the state before training, then that after each of `count` steps."""
    batch = batch or Batch()
    learner = Learner(source.model(), LearnerConfig(betas=betas))
    optimizer = torch.optim.AdamW(
        learner.model.parameters(), lr=schedule(1), betas=betas, weight_decay=0.01, fused=True
    )
    text = "\n\n".join(topics.values())[:_TEXT_CHARACTERS]
    ids = source.tokenizer().encode(text).ids
    yield State(step=0, lr=None, weights=learner.served())
    for step in range(1, count + 1):
        lr = schedule(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad(set_to_none=True)
        loss = -learner.logprobs(_batch(ids, step, batch)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(learner.model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        yield State(step=step, lr=lr, weights=learner.served())


def _batch(ids: list[int], step: int, batch: Batch) -> list[Rollout]:
    """Return the step's stretches of text: the first token is given, the others are learned."""
    first = (step - 1) * batch.sequences
    rows = []
    for number in range(first, first + batch.sequences):
        at = number * batch.tokens % (len(ids) - batch.tokens)
        given, *learned = ids[at : at + batch.tokens]
        row = Rollout(
            group=number,
            prompt=(given,),
            tokens=tuple(learned),
            logprobs=(0.0,) * len(learned),  # nobody sampled them
            spans=(),
        )
        rows.append(row)
    return rows
