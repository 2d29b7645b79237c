"""Simulated training: many steps of AdamW in a row, on the weights of a Llama.

As `simulate`, which makes one step: normal FP32 masters, normal updates whose size is fitted to the
share of served words that the first step changes.  The updates of successive steps are independent;
those of a real run are not (momentum), so a real weight wanders further.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from skerry.benchmarks.simulate import fit_updates, llama, served
from skerry.publisher import ServedTensor


class Walk:
    """The masters of one run; `serve` returns what is served now, `step` goes on."""

    def __init__(self, dtype: str, nbytes: int, density: float, *, seed: int) -> None:
        self._tensors = llama(dtype, nbytes)
        self._size = fit_updates(self._tensors, density, seed)
        self._random = torch.Generator().manual_seed(seed)
        self._masters = {
            tensor.name: torch.empty(tensor.shape).normal_(
                *tensor.spread,
                generator=self._random,
            )
            for tensor in self._tensors
        }

    def step(self) -> None:
        for master in self._masters.values():
            master += torch.empty(master.shape).normal_(0.0, self._size, generator=self._random)

    def serve(self) -> Mapping[str, ServedTensor]:
        """Return the served words of every tensor, in arrays of their own."""
        found = {}
        for tensor in self._tensors:
            words = served(self._masters[tensor.name].reshape(-1), tensor.dtype, tensor.std)
            found[tensor.name] = ServedTensor(
                dtype=tensor.dtype, shape=tensor.shape, data=np.array(words)
            )
        return found
