"""Continuous batching: sequences join and leave between two forward passes.

Running sequences keep their keys and values when the weights change (an in-flight update): the
tokens that follow come from the new weights over a context that the old ones computed.  No
request reads the keys of another one, so there is no prefix cache to flush.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from skerry.inference.engine import (
    EngineError,
    GeneratedToken,
    GenerationRequest,
    RequestUnsupported,
)
from skerry.inference.engines.sampling import Sampler
from skerry.inference.models.config import LlamaConfig
from skerry.inference.models.kv import KvCache
from skerry.inference.models.llama import Llama
from skerry.inference.models.moe import Recorder
from skerry.inference.routed import encode_routed

Deliver = Callable[[GeneratedToken | EngineError], None]


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """One request inside the engine: what is asked, who is told, and how far it is."""

    request: GenerationRequest
    deliver: Deliver
    cancelled: bool = False
    made: int = 0
    last: int = -1
    sampler: Sampler = field(init=False)
    routed: list[torch.Tensor] = field(default_factory=list)  # [tokens, layers, experts] each

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.request.temperature, self.request.seed)


class Batch:
    """The sequences that are being decoded, one cache row each."""

    def __init__(self, model: Llama, *, max_sequences: int) -> None:
        self._model = model
        self._max = max_sequences
        self._cache = KvCache(model.config, max_rows=max_sequences, dtype=model.head.dtype)
        self._running: list[Ticket] = []  # by cache row

    def __len__(self) -> int:
        return len(self._running)

    @property
    def full(self) -> bool:
        return len(self._running) == self._max

    @torch.inference_mode()
    def start(self, ticket: Ticket, version: int) -> None:
        """Read the prompt of `ticket` and make its first token, or tell it why there is none.

        Checked here and not on arrival, because only here it is certain which model will run it.
        """
        try:
            _check(ticket.request, self._model.config)
        except RequestUnsupported as error:
            ticket.deliver(error)
            return
        row = self._cache.add()
        self._running.append(ticket)
        prompt = torch.tensor([ticket.request.prompt])
        recorder = self._recorder()
        hidden = self._model.hidden(
            prompt,
            torch.arange(prompt.shape[1]),
            lambda layer, q, k, v: self._cache.prefill(row, layer, q, k, v),
            recorder,
        )
        self._keep([ticket], recorder)
        self._emit([ticket], self._model.logits(hidden[:, -1]), version)

    @torch.inference_mode()
    def step(self, version: int) -> None:
        """Make one token for every running sequence."""
        self._drop([t for t in self._running if t.cancelled])
        if not self._running:
            return
        tokens = torch.tensor([[ticket.last] for ticket in self._running])
        positions = self._cache.positions()[:, None]
        recorder = self._recorder()
        hidden = self._model.hidden(tokens, positions, self._cache.decode, recorder)
        self._keep(self._running, recorder)
        self._emit(list(self._running), self._model.logits(hidden[:, 0]), version)

    @torch.inference_mode()
    def abort(self, error: EngineError) -> None:
        """End every sequence with `error`."""
        for ticket in self._running:
            ticket.deliver(error)
        self._drop(list(self._running))

    def _recorder(self) -> Recorder:
        return Recorder(self._model.config.experts_per_token)

    def _keep(self, tickets: list[Ticket], recorder: Recorder) -> None:
        """Keep the experts of this pass for the requests that ask for them."""
        if any(ticket.request.routed_experts for ticket in tickets):
            for ticket, chosen in zip(tickets, recorder.chosen(), strict=True):
                if ticket.request.routed_experts:
                    ticket.routed.append(chosen)

    def _emit(self, tickets: list[Ticket], logits: torch.Tensor, version: int) -> None:
        finished = []
        for ticket, row in zip(tickets, logits, strict=True):
            token, logprob = ticket.sampler.choose(row)
            ticket.last = token
            ticket.made += 1
            reason = self._finish_reason(ticket)
            if reason is not None:
                finished.append(ticket)
            ticket.deliver(
                GeneratedToken(
                    token=token,
                    logprob=logprob,
                    version=version,
                    finish_reason=reason,
                    routed_experts=None if reason is None else self._routed(ticket),
                )
            )
        self._drop(finished)

    def _routed(self, ticket: Ticket) -> bytes | None:
        if not ticket.routed:
            return None
        return encode_routed(torch.cat(ticket.routed), count=self._model.config.experts)

    def _finish_reason(self, ticket: Ticket) -> str | None:
        if ticket.last in self._model.config.eos and not ticket.request.ignore_eos:
            return "stop"
        return "length" if ticket.made == ticket.request.max_tokens else None

    def _drop(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            row = self._running.index(ticket)
            self._cache.drop(row)
            last = self._running.pop()  # mirrors how the cache stays dense
            if last is not ticket:
                self._running[row] = last


def _check(request: GenerationRequest, config: LlamaConfig) -> None:
    """Raise RequestUnsupported for a request that the model cannot run."""
    if not request.prompt or request.max_tokens < 1:
        raise RequestUnsupported("a request needs at least one prompt token and one new token")
    if not all(0 <= token < config.vocab_size for token in request.prompt):
        raise RequestUnsupported(f"prompt tokens must be in 0..{config.vocab_size - 1}")
    if len(request.prompt) + request.max_tokens > config.context:
        raise RequestUnsupported(
            f"{len(request.prompt)} prompt and {request.max_tokens} new tokens exceed the "
            f"context of {config.context}"
        )
    if request.routed_experts and not config.experts:
        raise RequestUnsupported("return_routed_experts: the model that is served has no experts")
    if not math.isfinite(request.temperature) or request.temperature < 0:
        raise RequestUnsupported(f"temperature: expected 0 or more, found {request.temperature}")
