"""Simulated AdamW: weights of a stated magnitude profile, gradients of a steady part and noise.

The optimizer is torch's own, on FP32 masters.  A weight's gradient is `snr` times a direction of
its own that never turns, plus normal noise: what Adam's two averages make of that decides how far a
weight moves in a step, and its exponent decides whether that shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from skerry.benchmarks.deltas.states import State
from skerry.benchmarks.simulate import llama
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.precision import bf16_bits

Profile = Literal["normal", "heavy"]
PROFILES: tuple[Profile, ...] = ("normal", "heavy")

_FREEDOM = 3  # of Student's t: many small weights, a few that are tens of times as large


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamRecipe:
    """One simulated run.  `std` is that of the matrices; norms lie around 1."""

    megabytes: float = 16.0
    profile: Profile = "normal"
    std: float = 0.02
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    snr: float = 0.1
    steps: int = 16
    seed: int = 0


def simulated(recipe: AdamRecipe) -> Iterator[State]:
    """Yield the state before training, then that after each step."""
    random = torch.Generator().manual_seed(recipe.seed)
    masters = {
        tensor.name: torch.nn.Parameter(_weights(recipe, tensor.shape, random))
        for tensor in llama("BF16", int(recipe.megabytes * 1e6))
    }
    steady = {
        name: recipe.snr * torch.empty(master.shape).normal_(generator=random)
        for name, master in masters.items()
    }
    optimizer = torch.optim.AdamW(masters.values(), lr=recipe.lr, betas=recipe.betas, fused=True)

    def state(step: int) -> State:
        lr = None if step == 0 else recipe.lr
        return State(step=step, lr=lr, weights={n: _served(m) for n, m in masters.items()})

    yield state(0)
    for step in range(1, recipe.steps + 1):
        for name, master in masters.items():
            master.grad = torch.empty(master.shape).normal_(generator=random).add_(steady[name])
        optimizer.step()
        yield state(step)


def _weights(recipe: AdamRecipe, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    normal = torch.empty(shape).normal_(generator=random)
    if len(shape) < 2:
        return 1 + recipe.std * normal
    if recipe.profile == "heavy":
        # A normal number over the root of a chi-square's mean; then scaled to the same deviation.
        square = torch.empty(_FREEDOM, *shape).normal_(generator=random).square().sum(0)
        normal /= torch.sqrt(square / _FREEDOM) * math.sqrt(_FREEDOM / (_FREEDOM - 2))
    return recipe.std * normal


def _served(master: torch.Tensor) -> ServedTensor:
    words = np.array(bf16_bits(master))
    return ServedTensor(dtype="BF16", shape=tuple(master.shape), data=words)
