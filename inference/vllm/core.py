"""vLLM's asynchronous engine, as far as the front needs it: ranks, pause, label, tokens."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from skerry.inference.engine import GenerationRequest, RequestUnsupported

Answer = dict[str, Any]
PauseMode = Literal["keep", "wait", "abort"]

_FIRST_POLL_S, _LAST_POLL_S = 0.002, 0.1


class EngineGone(Exception):
    """The engine behind the server cannot be reached any more: it has to be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some tokens of a request, with their log-probabilities and weight labels.

    `finish` is vLLM's own reason on the last piece: "stop", "length" or "abort".
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    labels: Sequence[str]
    finish: str | None


Pieces = AsyncGenerator[Piece, None]


class Core(Protocol):
    """One engine with all its ranks."""

    @property
    def alive(self) -> bool:
        """Whether the engine's processes are there."""
        ...

    async def ranks(self, method: str, *args: object) -> list[Answer]:
        """Call a method of every rank's `SkerryWorker`.  Raises EngineGone."""
        ...

    async def beside(self, verb: str, *args: object) -> list[Answer]:
        """The same, beside the forward passes."""
        ...

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Return once no token is being made, with vLLM's meaning of `mode`."""
        ...

    async def resume(self) -> None:
        """Make tokens again.  Idempotent."""
        ...

    async def label(self, text: str) -> None:
        """Name the weights that the next token is made with."""
        ...

    async def forget(self) -> None:
        """Drop what the old weights computed and no salt keeps apart: outputs of encoders."""
        ...

    def check(self, request: GenerationRequest) -> None:
        """Raises RequestUnsupported."""
        ...

    def generate(self, request: GenerationRequest, request_id: str, salt: str) -> Pieces:
        """Yield the tokens of one request as they are made; closing it aborts the request."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its last piece says so."""
        ...


class AsyncCore:
    """`Core` over vLLM's `EngineClient`: a thin shell."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def alive(self) -> bool:
        return not self._client.errored

    @property
    def parallel(self) -> Any:
        return self._client.vllm_config.parallel_config

    @property
    def shares_encoders(self) -> bool:
        """Whether outputs of encoders come from other servers, or go to them."""
        return getattr(self._client.vllm_config, "ec_transfer_config", None) is not None

    async def ranks(self, method: str, *args: object) -> list[Answer]:
        try:
            return list(await self._client.collective_rpc(method, args=args))
        except Exception as error:  # a dead engine, or an engine without our worker
            raise EngineGone(f"{method}: {error!r}") from error

    async def beside(self, verb: str, *args: object) -> list[Answer]:
        answers = await self.ranks("skerry_begin", verb, *args)
        delay_s = _FIRST_POLL_S
        while all(a["ok"] for a in answers):
            answers = await self.ranks("skerry_poll")
            if not any(a.get("pending") for a in answers):
                break
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_POLL_S)
        return answers

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        # vLLM's own call then sleeps 20 ms, so that tokens on their way arrive before it returns.
        # Each of them has its label with it, so that it makes no difference here when it arrives.
        scheduler = getattr(self._client.engine_core, "pause_scheduler_async", None)
        if clear_cache or scheduler is None:
            await self._client.pause_generation(mode=mode, clear_cache=clear_cache)
        else:
            await scheduler(mode=mode, clear_cache=False)

    async def resume(self) -> None:
        await self._client.resume_generation()

    async def label(self, text: str) -> None:
        await self._client.update_weight_version(text)

    async def forget(self) -> None:
        # Keyed by the picture alone.  Requests that still need one have it computed again.
        if self._client.model_config.is_multimodal_model:
            await self._client.reset_encoder_cache()

    def check(self, request: GenerationRequest) -> None:
        config = self._client.model_config
        prompt, vocabulary = request.prompt, config.get_vocab_size()
        if not prompt or request.max_tokens < 1:
            raise RequestUnsupported("a request needs at least one prompt token and one new token")
        if not all(0 <= token < vocabulary for token in prompt):
            raise RequestUnsupported(f"prompt tokens must be in 0..{vocabulary - 1}")
        if len(prompt) + request.max_tokens > config.max_model_len:
            raise RequestUnsupported(
                f"{len(prompt)} prompt and {request.max_tokens} new tokens exceed the "
                f"context of {config.max_model_len}"
            )

    async def generate(self, request: GenerationRequest, request_id: str, salt: str) -> Pieces:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            ignore_eos=request.ignore_eos,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = TokensPrompt(prompt_token_ids=list(request.prompt), cache_salt=salt)
        labels = _Labels(self._client, request_id)
        held: list[tuple[int, float]] = []
        async with aclosing(self._client.generate(prompt, params, request_id)) as outputs:
            async for output in outputs:
                made = output.outputs[0]
                held += zip(made.token_ids, _logprobs(made), strict=True)
                known = labels.of(len(held), made)
                if known is None and not output.finished:
                    continue  # nothing is given away before it is known what made it
                pairs, held = held, []
                yield Piece(
                    tokens=[token for token, _ in pairs],
                    logprobs=[logprob for _, logprob in pairs],
                    labels=known or [""] * len(pairs),
                    finish=made.finish_reason if output.finished else None,
                )

    async def abort(self, request_id: str) -> None:
        await self._client.abort(request_id)


class _Labels:
    """Which weight label made each token, from vLLM's own books.

    It tells its spans at the end of a request; until then they are looked up where it keeps them.
    """

    def __init__(self, client: Any, request_id: str) -> None:
        self._processor = getattr(client, "output_processor", None)
        self._request_id = request_id
        self._state: Any = None
        self._given = 0

    def of(self, count: int, made: Any) -> list[str] | None:
        """Return the labels of the next `count` tokens; None if they are not known yet."""
        if made.weight_versions is not None:
            starts = [(span.version, span.start) for span in made.weight_versions]
        else:
            starts = list(getattr(self._find(), "weight_version_starts", ()))
        if not starts or starts[0][1] > self._given:
            return None
        labels = [
            next(label for label, start in reversed(starts) if start <= index)
            for index in range(self._given, self._given + count)
        ]
        self._given += count
        return labels

    def _find(self) -> Any:
        if self._state is None:
            ids = getattr(self._processor, "external_req_ids", {}).get(self._request_id, ())
            states = getattr(self._processor, "request_states", {})
            self._state = next((states[i] for i in ids if i in states), None)
        return self._state


def new_request_id() -> str:
    return f"skerry-{uuid.uuid4().hex}"


def _logprobs(made: Any) -> list[float]:
    return [
        float(table[token].logprob)
        for token, table in zip(made.token_ids, made.logprobs or (), strict=True)
    ]
