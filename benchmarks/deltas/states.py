"""What a run serves at one step, and the same in FP8.

FP8 is cast as the trainer casts it: the linear layers block-scaled from their BF16 weights, all
else as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import torch

from skerry.benchmarks.weights import Pair, layout_of
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.served import Form, Rule, RuleSet, serve

Weights = Mapping[str, ServedTensor]

_NO_LINEAR = re.compile(r"embed|lm_head|norm|router|\bgate\.weight$|\bwte\b|\bwpe\b|bias$")
_RULES = RuleSet(rules=(Rule(pattern="*", form=Form.FP8_BLOCK),))


class Precision(StrEnum):
    """As what the weights are served."""

    BF16 = "BF16"
    FP8 = "FP8"
    STORED = "as stored"  # of checkpoints that are neither FP32 nor BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The weights after `step` optimizer steps, and the learning rate of the last one if known."""

    step: int
    lr: float | None
    weights: Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where successive states come from.

    `measure` says which steps are measured with every codec; of all others only what changed is
    counted.  `precisions` are asked of each state.
    """

    source: str  # "live" | "trace" | "checkpoints" | "simulated AdamW"
    subject: str
    states: Iterator[State]
    measured: frozenset[int]
    precisions: tuple[Precision, ...] = (Precision.BF16, Precision.FP8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Two successive states in one precision."""

    step: int
    lr: float | None
    precision: Precision
    pair: Pair


def steps(run: Run) -> Iterator[Step]:
    """Yield each step of a run in each precision.  Raises ValueError if the structure changes."""
    served = (
        (state, {precision: in_precision(state.weights, precision) for precision in run.precisions})
        for state in run.states
    )
    for (_, before), (state, after) in pairwise(served):
        for precision in run.precisions:
            pair = pair_of(before[precision], after[precision])
            yield Step(step=state.step, lr=state.lr, precision=precision, pair=pair)


def in_precision(weights: Weights, precision: Precision) -> Weights:
    """Return the weights as they would be served."""
    if precision is not Precision.FP8:
        return weights
    found: dict[str, ServedTensor] = {}
    for name, tensor in weights.items():
        if is_linear(name, tensor):
            words = torch.from_numpy(tensor.data.view("<i2").reshape(tensor.shape))
            found |= serve(_RULES, [(name, words.view(torch.bfloat16))])
        else:
            found[name] = tensor
    return found


def is_linear(name: str, tensor: ServedTensor) -> bool:
    """Say whether a tensor is the weight of a layer that is served in FP8."""
    matrix = tensor.dtype == "BF16" and len(tensor.shape) == 2 and name.endswith(".weight")
    return matrix and _NO_LINEAR.search(name) is None


def pair_of(old: Weights, new: Weights) -> Pair:
    """Return two states side by side.  Raises ValueError unless they have the same structure."""
    shapes = [
        {name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}
        for weights in (old, new)
    ]
    if shapes[0] != shapes[1]:
        differ = sorted(dict(shapes[0].items() ^ shapes[1].items()))
        raise ValueError(f"the structure changes: {differ[0]}, {len(differ)} tensors in all")
    return Pair(
        layout=layout_of([(name, *shapes[0][name]) for name in shapes[0]]),
        old={name: tensor.raw for name, tensor in old.items()},
        new={name: tensor.raw for name, tensor in new.items()},
    )
