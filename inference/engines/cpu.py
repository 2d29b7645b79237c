"""The built-in engine: a Llama model on the CPU behind the `Engine` port.

It keeps one private copy of the weights, in the checkpoint's own bits, and no other form of them:
what it computes with is what `weights_digest` hashes.  An update is in flight: running requests go
on over the keys and values that they have.  Closing the iterator of `generate` frees its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from skerry.codec.digest import Bytes, Digest, leaf_digests, tensor_digest, version_digest
from skerry.inference.engine import (
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    WeightUpdate,
)
from skerry.inference.engines.batch import Ticket
from skerry.inference.engines.scatter import Located, Write, locate, put_words
from skerry.inference.engines.worker import Worker
from skerry.inference.models.checkpoint import DTYPE_NAMES, read_checkpoint
from skerry.inference.models.config import LlamaConfig, UnsupportedModel
from skerry.inference.models.llama import Llama


class CpuEngine:
    """See `skerry.inference.engine.UndoableEngine`, which this class implements."""

    def __init__(
        self,
        *,
        threads: int | None = None,
        max_sequences: int = 16,
        put: Write = put_words,
    ) -> None:
        """Start without weights; `load` gives it some.

        `threads` is torch's thread count inside the engine (None: torch's own choice),
        `max_sequences` how many requests run at once, `put` how words are written.
        """
        self._worker = Worker(threads=threads, max_sequences=max_sequences, put=put)
        self._staged: tuple[WeightUpdate, tuple[Located, ...]] | None = None
        self._tokenizer: Tokenizer | None = None

    @property
    def version(self) -> int | None:
        return self._worker.version

    async def load(self, directory: Path, version: int) -> None:
        self._staged = None
        await asyncio.wrap_future(self._worker.load(lambda: self._read(directory), version))

    async def stage(self, update: WeightUpdate) -> None:
        self._staged = None
        self._staged = (update, await asyncio.to_thread(self._locate, update))

    async def pause(self) -> None:
        await asyncio.wrap_future(self._worker.pause())

    async def install(self, update: WeightUpdate) -> None:
        if self._staged is None or _name(self._staged[0]) != _name(update):
            raise InstallFailed(f"version {update.version} is not staged")
        await asyncio.wrap_future(self._worker.install(self._staged[1], update.version))
        self._staged = None

    async def undo(self, update: WeightUpdate) -> None:
        await asyncio.wrap_future(self._worker.undo(update.base, update.version))

    async def resume(self) -> None:
        await asyncio.wrap_future(self._worker.resume())

    async def weights_digest(self) -> Digest:
        return await asyncio.to_thread(self._digest)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokens().encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text, without the special ones."""
        return str(self._tokens().decode(list(tokens), skip_special_tokens=True))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[GeneratedToken | EngineError] = asyncio.Queue()

        def deliver(item: GeneratedToken | EngineError) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, item)
            except RuntimeError:  # the loop is closed: nobody listens any more
                ticket.cancelled = True

        ticket = Ticket(request=request, deliver=deliver)
        self._worker.submit(ticket)
        try:
            while True:
                item = await arrived.get()
                if isinstance(item, EngineError):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            self._worker.cancel(ticket)

    async def close(self) -> None:
        await asyncio.to_thread(self._worker.close)

    def _read(self, directory: Path) -> Llama:
        self._tokenizer = _read_tokenizer(directory)
        config = LlamaConfig.from_directory(directory)
        return Llama(config, read_checkpoint(directory)).requires_grad_(False)

    def _tokens(self) -> Tokenizer:
        if self._tokenizer is None:
            raise self._worker.unusable
        return self._tokenizer

    def _loaded(self) -> Llama:
        if self._worker.model is None:
            raise self._worker.unusable
        return self._worker.model

    def _locate(self, update: WeightUpdate) -> tuple[Located, ...]:
        with self._worker.weights:
            if update.base != self._worker.version:
                raise InstallFailed(
                    f"update expects base {update.base}, found {self._worker.version}"
                )
            return locate(dict(self._loaded().named_parameters()), update.changes)

    def _digest(self) -> Digest:
        with self._worker.weights:
            return version_digest(
                {
                    name: tensor_digest(
                        name,
                        DTYPE_NAMES[parameter.dtype],
                        tuple(parameter.shape),
                        leaf_digests(tensor_bytes(parameter)),
                    )
                    for name, parameter in self._loaded().named_parameters()
                }
            )


def tensor_bytes(tensor: torch.Tensor) -> Bytes:
    """Return the bytes of a contiguous tensor, without a copy."""
    data: Bytes = tensor.detach().view(-1).view(torch.uint8).numpy()
    return data


def _name(update: WeightUpdate) -> tuple[int, int, Digest]:
    return update.base, update.version, update.digest


def _read_tokenizer(directory: Path) -> Tokenizer:
    text = (directory / "tokenizer.json").read_text(encoding="utf-8")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        raise UnsupportedModel(f"tokenizer.json: {error}") from error
