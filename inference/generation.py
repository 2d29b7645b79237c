"""The making of one answer: a task that holds the ticket, apart from whoever reads the tokens.

The ticket is held while tokens are made and not while they are sent, so that a slow reader cannot
delay a swap.  What piles up for it is bounded by the request's own `max_tokens`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from skerry.inference.accepted import AcceptedVersions
from skerry.inference.attribution import Span, spans_of
from skerry.inference.config import ServerConfig
from skerry.inference.engine import Engine, EngineError, GenerationRequest, RequestUnsupported
from skerry.inference.errors import (
    EngineUnavailable,
    RequestInvalid,
    RequestRevoked,
    RolloutError,
    WeightVersionNotReady,
)
from skerry.inference.gate import AdmissionGate
from skerry.inference.messages import SEED_LIMIT, CompletionBody

logger = logging.getLogger(__name__)

ABORT = "abort"


@dataclass(slots=True)
class Choice:
    """What was made so far of one choice."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    routed_experts: bytes | None = None  # for the client: nobody here reads them

    def spans(self) -> tuple[Span, ...]:
        return spans_of(self.versions)


class Generation:
    """One request on its way.  `start` it, follow or await it, and always `close` it."""

    def __init__(
        self,
        *,
        gate: AdmissionGate,
        engines: Mapping[str, Engine],
        body: CompletionBody,
        accepted: AcceptedVersions,
        wait_s: float,
        config: ServerConfig,
        on_admitted: Callable[[float], None],
    ) -> None:
        self._gate = gate
        self._engines = engines
        self._body = body
        self._accepted = accepted
        self._wait_s = wait_s
        self._config = config
        self._on_admitted = on_admitted
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self._failure: RolloutError | None = None
        self.prompt_tokens = 0
        self.choices = [Choice() for _ in range(body.n)]

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._arrived.set())

    async def first(self) -> None:
        """Return at the first token.  Raises the RolloutError for which there will be none."""
        assert self._task is not None
        while not self.output_tokens and not self._task.done():
            await self._next()
        if not self.output_tokens:
            self._task.result()

    async def done(self) -> None:
        """Return when every choice has ended.  Raises as `first` does."""
        assert self._task is not None
        await asyncio.wait([self._task])
        self._task.result()

    async def pieces(self) -> AsyncIterator[tuple[int, int]]:
        """Yield the ranges of the first choice's tokens as they come, all of them once."""
        assert self._task is not None
        sent = 0
        while True:
            done = self._task.done()
            if len(self.choices[0].tokens) > sent:
                start, sent = sent, len(self.choices[0].tokens)
                yield start, sent
            elif done:
                return
            else:
                await self._next()

    async def close(self) -> None:
        """Cancel what still runs, and return when the ticket is free."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and self.output_tokens and self.streams:
            # An answer with status 200 is under way, so that only the log can still tell.
            logger.error("a stream was cut off by a defect", exc_info=error)

    @property
    def streams(self) -> bool:
        return self._body.stream

    @property
    def wants_logprobs(self) -> bool:
        return self._body.wants_logprobs

    @property
    def output_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)

    @property
    def aborted(self) -> bool:
        return any(choice.finish_reason == ABORT for choice in self.choices)

    def bounds(self) -> tuple[int, int]:
        """Return the lowest and the highest version that made a token."""
        ends = [v for c in self.choices for v in (*c.versions[:1], *c.versions[-1:])]
        return min(ends), max(ends)

    def text(self, tokens: list[int]) -> str:
        assert self._engine is not None
        return self._engine.decode(tokens)

    async def _next(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()

    async def _run(self) -> None:
        try:
            async with self._gate.admit(self._accepted, self._wait_s) as ticket:
                self._on_admitted(ticket.waited_s)
                engine = self._engine = self._engines[ticket.engine]
                prompt = await self._prompt(engine)
                async with asyncio.TaskGroup() as group:
                    for index, choice in enumerate(self.choices):
                        group.create_task(self._make(choice, engine, self._request(prompt, index)))
        except RequestRevoked as revoked:
            self._failure = self._unserved(WeightVersionNotReady, revoked)
        if not self.output_tokens:
            # Nothing was promised to the caller yet, so it can be told what to do instead.
            raise self._failure or self._unserved(EngineUnavailable, "the engine made no token")
        for choice in self.choices:
            choice.finish_reason = choice.finish_reason or ABORT

    async def _make(self, choice: Choice, engine: Engine, request: GenerationRequest) -> None:
        try:
            async with aclosing(engine.generate(request)) as tokens:
                async for token in tokens:
                    if not self._accepted.contains(token.version):
                        logger.error(
                            "a token of version %d came to a request for %s",
                            token.version,
                            self._accepted,
                        )
                        return
                    choice.tokens.append(token.token)
                    choice.logprobs.append(token.logprob)
                    choice.versions.append(token.version)
                    choice.finish_reason = token.finish_reason
                    choice.routed_experts = token.routed_experts
                    self._arrived.set()
        except RequestUnsupported as error:
            self._failure = RequestInvalid(str(error), status=422)
        except EngineError as error:
            logger.warning("a request ended early after %d tokens: %s", len(choice.tokens), error)

    async def _prompt(self, engine: Engine) -> tuple[int, ...]:
        said = self._body.prompt
        if isinstance(said, str):
            prompt = await asyncio.to_thread(engine.encode, said)  # seconds for the longest bodies
        else:
            prompt = tuple(said)
        limit = self._config.max_prompt_tokens
        if not 1 <= len(prompt) <= limit:
            raise RequestInvalid(
                f"prompt: expected 1 to {limit} tokens, found {len(prompt)}", status=422
            )
        self.prompt_tokens = len(prompt)
        return prompt

    def _request(self, prompt: tuple[int, ...], index: int) -> GenerationRequest:
        body = self._body
        seed = None if body.seed is None else (body.seed + index) % SEED_LIMIT
        return GenerationRequest(
            prompt=prompt,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            seed=seed,
            ignore_eos=body.ignore_eos,
            routed_experts=body.return_routed_experts,
        )

    def _unserved(
        self, kind: type[WeightVersionNotReady | EngineUnavailable], why: object
    ) -> RolloutError:
        return kind(str(why), served=self._gate.served(), newest=self._gate.known.newest)
