"""A client for rollouts by version: it says what it accepts and checks what it gets.

Retried within a budget: 409 and 503 that say when to come back, and connections that were refused,
so that nothing was sent.  Everything else raises the error of its kind; answers are not trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Self

import aiohttp

from skerry.inference.accepted import ANY, Constraint
from skerry.inference.bounded import read_at_most
from skerry.inference.completion import Completion, Piece, read_completion, read_piece, read_refusal
from skerry.inference.config import ClientConfig
from skerry.inference.constraint import (
    END_HEADER,
    START_HEADER,
    VERSIONS_HEADER,
    WAIT_HEADER,
    parse_header,
)
from skerry.inference.errors import (
    AnswerInvalid,
    EngineUnavailable,
    RolloutError,
    Unreachable,
    WeightVersionNotReady,
)
from skerry.inference.passed import PassedCompletion, read_passed_completion

logger = logging.getLogger(__name__)

_DATA = b"data: "
_DONE = b"[DONE]"


class RolloutClient:
    """Completions from one server.  Use as an async context manager, or `close` it."""

    def __init__(
        self,
        base_url: str,
        *,
        config: ClientConfig | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._url = self._base + "/v1/completions"
        self._config = config or ClientConfig()
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None

    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        accepted: Constraint | str | None = None,
        wait_s: float | None = None,
        max_tokens: int = 16,
        temperature: float = 1.0,
        seed: int | None = None,
        n: int = 1,
        ignore_eos: bool = False,
        routed_experts: bool = False,
    ) -> Completion:
        """Return one completion of `n` choices, made by versions of `accepted` (None: any).

        `routed_experts` asks for those as well: the engine refuses if it has none.

        Raises ConstraintInvalid, RequestInvalid, WeightVersionNotReady, WeightVersionGone,
        EngineUnavailable, Unreachable or AnswerInvalid.
        """
        constraint = _constraint(accepted)
        body = _body(prompt, max_tokens, temperature, seed, n, ignore_eos, stream=False)
        if routed_experts:
            body["return_routed_experts"] = True
        async with self._answer(body, constraint, wait_s) as answer:
            data = await _read(answer, self._config.max_answer_bytes)
        return read_completion(data, constraint, n=n, max_tokens=max_tokens)

    async def stream(
        self,
        prompt: str | Sequence[int],
        *,
        accepted: Constraint | str | None = None,
        wait_s: float | None = None,
        max_tokens: int = 16,
        temperature: float = 1.0,
        seed: int | None = None,
        ignore_eos: bool = False,
    ) -> AsyncGenerator[Piece | Completion, None]:
        """Yield the tokens as they come, and last the whole completion, checked as a whole.

        Raises as `complete` does.  Closing the iterator cancels the request.
        """
        constraint = _constraint(accepted)
        body = _body(prompt, max_tokens, temperature, seed, 1, ignore_eos, stream=True)
        pieces: list[Piece] = []
        async with (
            self._answer(body, constraint, wait_s) as answer,
            aclosing(_events(answer, self._config)) as events,
        ):
            async for event in events:
                piece = read_piece(event, constraint, pieces, max_tokens=max_tokens)
                if isinstance(piece, Completion):
                    yield piece
                    return
                pieces.append(piece)
                yield piece
        raise Unreachable(f"{self._url}: the stream ended before its last event")

    async def ask(
        self,
        route: str,
        body: Mapping[str, object],
        *,
        accepted: Constraint | str | None = None,
        wait_s: float | None = None,
    ) -> PassedCompletion:
        """Ask a route of the engine's own API, such as `/v1/chat/completions`, for a whole answer.

        One version makes all of it.  Raises as `complete` does, and ValueError for a stream.
        """
        if body.get("stream"):
            raise ValueError("stream: expected a request for a whole answer")
        constraint = _constraint(accepted)
        async with self._answer(dict(body), constraint, wait_s, self._base + route) as answer:
            data = await _read(answer, self._config.max_answer_bytes)
            starts, ends = (answer.headers.getall(h, []) for h in (START_HEADER, END_HEADER))
        return read_passed_completion(data, starts, ends, constraint)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def _answer(
        self,
        body: dict[str, object],
        constraint: Constraint,
        wait_s: float | None,
        url: str | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send until an answer with status 200 begins."""
        headers = {} if constraint == ANY else {VERSIONS_HEADER: str(constraint)}
        if wait_s is not None:
            headers[WAIT_HEADER] = f"{wait_s:.3f}s"
        url = url or self._url
        answer = await self._ask(url, body, headers)
        try:
            yield answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{url}: the answer broke off: {error!r}") from error
        finally:
            answer.close()

    async def _ask(
        self, url: str, body: dict[str, object], headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        left_s, backoff_s = self._config.retry_budget_s, self._config.backoff_s
        while True:
            pause_s: float | None
            try:
                answer = await self._post(url, body, headers)
                if answer.status == 200:
                    return answer
                refusal: RolloutError = await self._refusal(answer)
                pause_s = None
                if isinstance(refusal, WeightVersionNotReady | EngineUnavailable):
                    pause_s = refusal.retry_after_s
            except aiohttp.ClientConnectorError as error:
                refusal = Unreachable(f"{url}: cannot connect: {error}")
                pause_s, backoff_s = backoff_s, min(2 * backoff_s, self._config.max_backoff_s)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise Unreachable(f"{url}: no answer: {error!r}") from error
            # "At once" uses up the budget too, or a confused server could be asked for ever.
            if pause_s is None or max(pause_s, self._config.backoff_s) > left_s:
                raise refusal
            logger.debug("%s: again in %g s: %s", self._url, pause_s, refusal)
            left_s -= max(pause_s, self._config.backoff_s)
            await self._sleep(pause_s)

    async def _post(
        self, url: str, body: dict[str, object], headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=self._config.answer_s, connect=self._config.connect_s
            )
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        return await self._session.post(url, json=body, headers=headers, allow_redirects=False)

    async def _refusal(self, answer: aiohttp.ClientResponse) -> RolloutError:
        try:
            data = await _read(answer, self._config.max_event_bytes)
        finally:
            answer.release()
        return read_refusal(answer.status, answer.headers.get("Retry-After"), data)


async def _read(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    data, whole = await read_at_most(answer, limit_bytes)
    if not whole:
        raise AnswerInvalid(f"answer: expected at most {limit_bytes} bytes, found more")
    return data


async def _events(
    answer: aiohttp.ClientResponse, config: ClientConfig
) -> AsyncGenerator[bytes, None]:
    """Yield the data of each event; each is one `data:` line, as the server writes them."""
    line, total = bytearray(), 0
    async for piece in answer.content.iter_any():
        line += piece
        total += len(piece)
        *events, rest = line.split(b"\n\n")
        line = bytearray(rest)
        if len(line) > config.max_event_bytes or total > config.max_answer_bytes:
            raise AnswerInvalid(
                f"stream: expected at most {config.max_event_bytes} bytes an event and "
                f"{config.max_answer_bytes} in all, found more"
            )
        for event in events:
            if not event.startswith(_DATA) or b"\n" in event:
                raise AnswerInvalid(f"stream: expected one data line, found {bytes(event)!r:.80}")
            data = bytes(event[len(_DATA) :])
            if data == _DONE:
                return
            yield data


def _constraint(accepted: Constraint | str | None) -> Constraint:
    if isinstance(accepted, str):
        return parse_header(accepted)
    return ANY if accepted is None else accepted


def _body(
    prompt: str | Sequence[int],
    max_tokens: int,
    temperature: float,
    seed: int | None,
    n: int,
    ignore_eos: bool,
    *,
    stream: bool,
) -> dict[str, object]:
    body: dict[str, object] = {
        "prompt": prompt if isinstance(prompt, str) else [int(token) for token in prompt],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "n": n,
        "logprobs": True,
        "stream": stream,
        "ignore_eos": ignore_eos,
    }
    return body if seed is None else {**body, "seed": seed}
