"""A sparse MLP in Mixtral's form: a router sends every token to a few of many experts.

Which experts is decided outside, by a `Choose`, so that an engine can record the choice and a
trainer can repeat it.  The weights of the chosen experts always come from the router's own scores:
a softmax over theirs alone, as in Hugging Face's Mixtral.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from skerry.inference.models.config import LlamaConfig
from skerry.inference.models.linear import Linear

# Layer and router scores [..., experts] -> experts [..., experts of a token], int64.
Choose = Callable[[int, Tensor], Tensor]


class Recorder:
    """Chooses the experts with the highest scores, and keeps what it chose."""

    def __init__(self, per_token: int) -> None:
        self._per_token = per_token
        self._chosen: list[Tensor] = []

    def __call__(self, layer: int, scores: Tensor) -> Tensor:
        chosen = scores.topk(self._per_token, dim=-1).indices
        self._chosen.append(chosen)
        return chosen

    def chosen(self) -> Tensor:
        """Return the experts of one forward pass, [batch, tokens, layers, experts of a token]."""
        return torch.stack(self._chosen, dim=-2)


class Expert(nn.Module):
    """SwiGLU, with Mixtral's names of the weights."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.w1 = Linear(config.hidden_size, config.intermediate_size)
        self.w2 = Linear(config.intermediate_size, config.hidden_size)
        self.w3 = Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return mixed


class SparseMLP(nn.Module):
    """The router and its experts of one layer."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.gate = Linear(config.hidden_size, config.experts)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.experts))

    def forward(self, x: Tensor, choose: Choose) -> Tensor:
        scores = self.gate(x).float()
        chosen = choose(self.layer, scores.detach())
        weights = scores.gather(-1, chosen).softmax(dim=-1)
        flat, out = x.reshape(-1, x.shape[-1]), torch.zeros_like(x).reshape(-1, x.shape[-1])
        tokens_of, weights = chosen.reshape(-1, chosen.shape[-1]), weights.flatten(0, -2)
        for number, expert in enumerate(self.experts):
            token, slot = (tokens_of == number).nonzero(as_tuple=True)
            if token.numel():
                made = expert(flat[token]).float() * weights[token, slot, None]
                out = out.index_add(0, token, made.to(out.dtype))
        return out.view_as(x)
