"""The FP32 master model and its optimizer: one batch of rollouts in, one step further.

The forward pass runs in BF16 where the processor is faster at that; the log-probabilities come
out of an FP32 product, as they do in the engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.checkpoint import checkpoint

from skerry.inference.models.llama import Llama
from skerry.publisher.arrays import Served
from skerry.trainer.grpo import clipped_objective
from skerry.trainer.precision import served_on
from skerry.trainer.rollouts import Rollout

_HEAD_TOKENS = 256  # tokens whose logits over the whole vocabulary are in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How the master weights move, and where.  `bf16` None: measured once, at the start."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    clip: float = 0.2
    micro_batch: int = 16  # sequences
    bf16: bool | None = None
    device: str = "cpu"  # as torch names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one optimizer step did."""

    loss: float
    grad_norm: float
    clipped: float  # share of the tokens
    mismatch: float  # mean |log-probability here - log-probability when sampled|


class Learner:
    """Owns the master weights."""

    def __init__(self, model: Llama, config: LearnerConfig) -> None:
        wrong = [n for n, p in model.named_parameters() if p.dtype != torch.float32]
        if wrong:
            raise TypeError(f"master weights are float32, {wrong[0]} is not")
        self._config = config
        self._device = torch.device(config.device)
        self.model = model.to(self._device)
        self._bf16 = bf16_is_faster(self._device) if config.bf16 is None else config.bf16
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
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
    ) -> Update:
        """Take one step on `rollouts`; every token counts the same."""
        total = sum(len(rollout.tokens) for rollout in rollouts)
        loss = cut = apart = 0.0
        self._optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(rollouts), self._config.micro_batch):
            some = slice(start, start + self._config.micro_batch)
            logprobs = self.logprobs(rollouts[some], temperature=temperature)
            behaviour = torch.tensor(
                [p for r in rollouts[some] for p in r.logprobs], device=self._device
            )
            lengths = torch.tensor([len(r.tokens) for r in rollouts[some]])
            weights = torch.tensor(advantages[some]).repeat_interleave(lengths)
            losses, clipped = clipped_objective(
                logprobs, behaviour, weights.to(self._device), clip=self._config.clip
            )
            part = losses.sum() / total
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
            cut += clipped.sum().item() / total
            apart += (logprobs.detach() - behaviour).abs().sum().item() / total
        norm = self._clip()
        self._optimizer.step()
        return Update(loss=loss, grad_norm=norm, clipped=cut, mismatch=apart)

    def _clip(self) -> float:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = get_total_norm(grads, error_if_nonfinite=True)
        if norm > self._config.max_grad_norm:  # otherwise a pass over all gradients is saved
            clip_grads_with_norm_(self.model.parameters(), self._config.max_grad_norm, norm)
        return norm.item()

    def logprobs(self, rollouts: Sequence[Rollout], *, temperature: float = 1.0) -> torch.Tensor:
        """Return the log-probability of every sampled token, one rollout after the other."""
        device = self._device
        inputs, rows, columns = (part.to(device) for part in _padded(rollouts))
        with torch.autocast(device.type, torch.bfloat16, enabled=self._bf16):
            hidden = self.model.hidden(inputs, torch.arange(inputs.shape[1], device=device))
        targets = torch.tensor([t for r in rollouts for t in r.tokens], device=device)
        return _logprobs(hidden[rows, columns].float(), self.model.head, targets, temperature)

    def served(self) -> Mapping[str, Served]:
        """Return the master weights in served precision, where they are."""
        return served_on(self._device, self.model.named_parameters())


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
