"""How one token is chosen, and the log-probability that it was chosen with.

A sampled token costs one uniform number of the request's own generator, so a seed gives the same
tokens whatever else runs beside it, as long as the logits are the same.
"""

from __future__ import annotations

import torch


class Sampler:
    """Chooses the tokens of one request."""

    def __init__(self, temperature: float, seed: int | None) -> None:
        self._temperature = temperature
        self._random = torch.Generator()
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(seed)

    def choose(self, logits: torch.Tensor) -> tuple[int, float]:
        """Return a token and its log-probability under the distribution that it was drawn from.

        `logits` are FP32, shape [vocabulary].  At temperature 0 the most likely token is taken
        and its log-probability is the model's own.
        """
        if self._temperature == 0:
            logprobs = torch.log_softmax(logits, dim=-1)
            token = int(logprobs.argmax())
        else:
            logprobs = torch.log_softmax(logits / self._temperature, dim=-1)
            token = self._draw(logprobs)
        return token, float(logprobs[token])

    def _draw(self, logprobs: torch.Tensor) -> int:
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        drawn = torch.rand((), generator=self._random, dtype=torch.float64) * cumulative[-1]
        # right=True: a token of probability zero spans nothing and is never drawn.
        token = int(torch.searchsorted(cumulative, drawn, right=True))
        return min(token, logprobs.numel() - 1)
