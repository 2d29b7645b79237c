"""The FP32 master model and its optimizer: one batch of rollouts in, one step further.

The forward pass runs in BF16 where the processor is faster at that; the log-probabilities come
out of an FP32 product, as they do in the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from skerry.inference.models.llama import Llama
from skerry.publisher.arrays import Served
from skerry.trainer.precision import served_on
from skerry.trainer.rl.importance import Importance, objective
from skerry.trainer.rl.replay import is_routed, replayed
from skerry.trainer.rl.rollouts import Rollout
from skerry.trainer.rl.tally import LagStats, merged, stats_by_lag

Weights = Iterable[tuple[str, torch.Tensor]]  # by HF name, FP32

_HEAD_TOKENS = 256  # tokens whose logits over the whole vocabulary are in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How the master weights move, and where.  `bf16` None: measured once, at the start.

    With `replay` tokens go to the experts that the engines sent them to.
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    importance: Importance = field(default_factory=Importance)
    replay: bool = False
    micro_batch: int = 16  # sequences
    bf16: bool | None = None
    device: str = "cpu"  # as torch names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one optimizer step did; `by_lag` has the tokens by how old their version was."""

    loss: float
    grad_norm: float
    by_lag: Mapping[int, LagStats]

    @property
    def bounded(self) -> float:
        """Share of the tokens whose importance ratio was bounded."""
        return self._mean(lambda stats: stats.bounded)

    @property
    def mismatch(self) -> float:
        """Mean |log-probability here - log-probability when sampled|, in nats."""
        return self._mean(lambda stats: stats.apart)

    @property
    def kl(self) -> float:
        """Mean estimate of KL(behaviour || policy), in nats a token."""
        return self._mean(lambda stats: stats.kl)

    def _mean(self, of: Callable[[LagStats], float]) -> float:
        tokens = sum(stats.tokens for stats in self.by_lag.values())
        return sum(map(of, self.by_lag.values())) / tokens


class Learner:
    """Owns the master weights."""

    def __init__(
        self,
        model: Llama,
        config: LearnerConfig,
        *,
        weights: Callable[[Llama], Weights] = torch.nn.Module.named_parameters,
    ) -> None:
        """Trained are the parameters that require a gradient, served is what `weights` gives."""
        wrong = [n for n, p in model.named_parameters() if p.dtype != torch.float32]
        if wrong:
            raise TypeError(f"master weights are float32, {wrong[0]} is not")
        if config.replay and not model.config.experts:
            raise ValueError("replay: the model has no experts")
        self._weights = weights
        self._config = config
        self._device = torch.device(config.device)
        self.model = model.to(self._device)
        self._bf16 = bf16_is_faster(self._device) if config.bf16 is None else config.bf16
        self._optimizer = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def update(
        self,
        rollouts: Sequence[Rollout],
        advantages: Sequence[float],
        *,
        temperature: float = 1.0,
        lags: Sequence[Sequence[int]] | None = None,
    ) -> Update:
        """Take one step on `rollouts`; every token counts the same, but for its importance.

        `lags` say of each token how many steps its version is behind; None: none is.
        """
        lags = lags or [(0,) * len(rollout.tokens) for rollout in rollouts]
        total = sum(len(rollout.tokens) for rollout in rollouts)
        loss, parts = 0.0, []
        self._optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(rollouts), self._config.micro_batch):
            some = slice(start, start + self._config.micro_batch)
            logprobs = self.logprobs(rollouts[some], temperature=temperature)
            behaviour = _behaviour(rollouts[some], self._device)
            lengths = torch.tensor([len(r.tokens) for r in rollouts[some]])
            weights = torch.tensor(advantages[some]).repeat_interleave(lengths)
            losses, bounded = objective(
                logprobs, behaviour, weights.to(self._device), self._config.importance
            )
            part = losses.sum() / total
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
            flat = [lag for rollout in lags[some] for lag in rollout]
            parts.append(stats_by_lag(flat, logprobs - behaviour, bounded))
        norm = self._clip()
        self._optimizer.step()
        return Update(loss=loss, grad_norm=norm, by_lag=merged(parts))

    @property
    def replays(self) -> bool:
        """Whether rollouts have to bring their routed experts."""
        return self._config.replay

    def can_learn(self, rollout: Rollout) -> bool:
        """Say whether a rollout brought what is replayed, if anything is."""
        return not self._config.replay or is_routed(rollout, self.model.config)

    def _clip(self) -> float:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = get_total_norm(grads, error_if_nonfinite=True)
        if norm > self._config.max_grad_norm:  # otherwise a pass over all gradients is saved
            clip_grads_with_norm_(self.model.parameters(), self._config.max_grad_norm, norm)
        return norm.item()

    def logprobs(
        self,
        rollouts: Sequence[Rollout],
        *,
        temperature: float = 1.0,
        replay: bool | None = None,
    ) -> torch.Tensor:
        """Return the log-probability of every sampled token, one rollout after the other.

        `replay` None: as the configuration says.
        """
        device = self._device
        replay = self._config.replay if replay is None else replay
        choose = replayed(rollouts, self.model.config, device) if replay else None
        inputs, rows, columns = (part.to(device) for part in _padded(rollouts))
        with torch.autocast(device.type, torch.bfloat16, enabled=self._bf16):
            positions = torch.arange(inputs.shape[1], device=device)
            hidden = self.model.hidden(inputs, positions, choose=choose)
        targets = torch.tensor([t for r in rollouts for t in r.tokens], device=device)
        return _logprobs(hidden[rows, columns].float(), self.model.head, targets, temperature)

    def served(self) -> Mapping[str, Served]:
        """Return the master weights in served precision, where they are."""
        return served_on(self._device, self._weights(self.model))


def bf16_is_faster(device: torch.device) -> bool:
    """Measure whether BF16 products beat FP32 ones on this device."""

    def fastest(dtype: torch.dtype) -> float:
        a = torch.ones(256, 1024, dtype=dtype, device=device)
        b = torch.ones(1024, 1024, dtype=dtype, device=device)
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            (a @ b)[0, 0].item()  # which an accelerator has when it is done
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    return fastest(torch.bfloat16) < fastest(torch.float32)


def _behaviour(rollouts: Sequence[Rollout], device: torch.device) -> torch.Tensor:
    """Return the log-probability that every token was sampled with, by the version that made it."""
    return torch.tensor([p for r in rollouts for p in r.logprobs], device=device)


def _logprobs(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the log-probabilities of `targets` [n] under hidden states [n, hidden]."""
    if targets.numel() <= _HEAD_TOKENS:
        return _chunk(hidden, head, targets, temperature)
    chunks: list[torch.Tensor] = [
        checkpoint(
            _chunk,
            hidden[at : at + _HEAD_TOKENS],
            head,
            targets[at : at + _HEAD_TOKENS],
            temperature,
            use_reentrant=False,
        )
        for at in range(0, targets.numel(), _HEAD_TOKENS)
    ]
    return torch.cat(chunks)


def _chunk(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, temperature: float
) -> torch.Tensor:
    logits = hidden @ head.T / temperature
    chosen = logits.gather(1, targets[:, None])[:, 0]
    return chosen - logits.logsumexp(dim=-1)


def _padded(
    rollouts: Sequence[Rollout],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs [n, longest], and where in them every sampled token is predicted.

    Padding is on the right: under causal attention no real token sees it.
    """
    rows = [[*r.prompt, *r.tokens[:-1]] for r in rollouts]
    longest = max(map(len, rows))
    inputs = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    at = list(_predicted(rollouts))
    return inputs, torch.tensor([row for row, _ in at]), torch.tensor([col for _, col in at])


def _predicted(rollouts: Sequence[Rollout]) -> Iterator[tuple[int, int]]:
    for row, rollout in enumerate(rollouts):
        first = len(rollout.prompt) - 1
        for column in range(first, first + len(rollout.tokens)):
            yield row, column
