"""What vLLM says of the tokens of one answer of its own routes: how many, and by which weights.

It has an account of every request inside its process, and shows it in one of its routes only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from skerry.inference.attribution import Span

current: ContextVar[Account | None] = ContextVar("skerry_account", default=None)


class AccountWrong(RuntimeError):
    """The answer cannot be given: its tokens are not known to be of the version it was asked of."""


class Account:
    """The requests to the engine that one answer is made of."""

    def __init__(self) -> None:
        self.request_id = ""
        self.model = ""
        self._requests = 0
        self._choices = 0
        self._spans: dict[int, Any] = {}  # by choice, of those that have ended

    def open(self, model: str, params: Any, request_id: str) -> None:
        """A request goes to the engine."""
        self._requests += 1
        self.model, self.request_id = model, request_id
        self._choices = int(getattr(params, "n", None) or 1)

    def note(self, output: Any) -> None:
        """Take over what the engine says of the choices that have ended."""
        for made in output.outputs:
            if made.finish_reason is not None:
                self._spans[made.index] = made.weight_versions

    def spans(self, version: int) -> list[list[Span]] | None:
        """Return the spans of each choice; None while some has not ended.

        Raises AccountWrong for tokens that are of other weights, or of unknown ones.
        """
        if self._requests > 1:
            raise AccountWrong("an answer of several requests to the engine: nobody counts those")
        if not self._requests or set(self._spans) != set(range(self._choices)):
            return None
        return [_of(version, self._spans[index]) for index in range(self._choices)]


def keep_accounts(client: Any) -> None:
    """Have `client`, vLLM's `EngineClient`, keep the account of whoever asks it.  Idempotent."""
    inner = client.generate
    if getattr(inner, "_skerry", False):
        return

    def generate(prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> Any:
        outputs = inner(prompt, sampling_params, request_id, **more)
        account = current.get()
        if account is None:
            return outputs
        account.open(str(client.model_config.served_model_name), sampling_params, request_id)
        return _noted(account, outputs)

    generate._skerry = True  # type: ignore[attr-defined]
    client.generate = generate


async def _noted(account: Account, outputs: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            account.note(output)
            yield output


def _of(version: int, spans: Any) -> list[Span]:
    if spans is None:
        raise AccountWrong("the engine does not say which weights made its tokens")
    for span in spans:
        if span.version != str(version):
            raise AccountWrong(f"expected tokens of version {version}, found {span.version!r:.40}")
    return [Span(version=version, start=span.start, end=span.end) for span in spans]
