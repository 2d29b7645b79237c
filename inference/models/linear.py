"""A product without bias, as every projection of these models is."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn


class Linear(nn.Module):
    """A product without bias; its weight is not initialised, because it is always replaced."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)
