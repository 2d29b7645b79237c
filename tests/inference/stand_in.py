"""A deterministic engine in this process, which does exactly what a test tells it to.

Its token at a position is a function of the hash of its weights, so that every label can be proved:
`token_of(digest, position)`.  It has two ranks, each with one tensor, and can fail in either.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.dtypes import Words
from skerry.codec.errors import CodecError
from skerry.codec.tensors import TensorChanges
from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    RequestUnsupported,
    WeightUpdate,
)
from skerry.inference.slot import Changes
from tests.inference.checkpoints import (
    Tensors,
    digest_of,
    read_checkpoint,
    update_between,
    write_checkpoint,
)

ROUTED = bytes(range(256))  # what it says of routed experts: nothing that can be parsed
VOCABULARY = 96  # printable ASCII and a line break
WORDS = 32
CONTEXT = 2**16
Fault = Literal["before", "half", "half-broken", "label-first"]


class StandInEngine:
    """Tokens flow freely, or one per `permit` once `paced`; `fault` spoils the next install,
    and `crash` is raised instead of the token at `crash_at`."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.failing_resumes = 0
        self.crash: Exception | None = None
        self.crash_at = 0
        self.calls: list[str] = []
        self.install_began = asyncio.Event()
        self.install_may_go_on = asyncio.Event()
        self.install_may_go_on.set()
        self.encode_began = threading.Event()
        self.encode_may_go_on = threading.Event()
        self.encode_may_go_on.set()
        self.open_requests = 0
        self.paused = False
        self._paced = False
        self._permits = 0
        self._permits_each = 0
        self._made = 0
        self._tensors: Tensors | None = None
        self._digest: Digest | None = None
        self._version: int | None = None
        self._staged: WeightUpdate | None = None
        self._installed: WeightUpdate | None = None
        self._changes = Changes()

    # How a test steers it.

    def pace(self) -> None:
        """From now on make a token only when permitted."""
        self._paced = True

    def permit(self, tokens: int) -> None:
        """Let `tokens` more be made."""
        self._permits += tokens
        self._changes.wake()

    def permit_each(self, tokens: int) -> None:
        """Let every request make its first `tokens`, however many others run."""
        self._permits_each = tokens
        self._changes.wake()

    async def made(self, tokens: int) -> None:
        """Return when all requests together have made `tokens` at least."""
        await self._until(lambda: self._made >= tokens)

    async def idle(self) -> None:
        """Return when no request is open."""
        await self._until(lambda: not self.open_requests)

    # The port.

    async def load(self, directory: Path, version: int) -> None:
        self.calls.append(f"load {version}")
        await self.idle()
        self._version = self._tensors = self._digest = None
        try:
            tensors = read_checkpoint(directory)
        except (CodecError, OSError) as error:
            raise EngineBroken(f"cannot load {directory}: {error}") from error
        if not tensors:
            raise EngineBroken(f"cannot load {directory}: no tensors")
        self._tensors, self._digest, self._version = tensors, digest_of(tensors), version

    async def stage(self, update: WeightUpdate) -> None:
        self.calls.append(f"stage {update.version}")
        self._staged = None
        if self._tensors is None or update.base != self._version:
            raise InstallFailed(f"update of {update.base}, serving {self._version}")
        for change in update.changes:
            tensor = self._tensors.get(change.spec.name)
            if tensor is None or tensor.spec.shape != change.spec.shape:
                raise InstallFailed(f"{change.spec.name}: {change.spec.shape} does not fit")
            words = tensor.spec.view(tensor.data)
            if change.positions.max(initial=-1) >= words.size:
                raise InstallFailed(f"{change.spec.name}: position out of range")
            if not np.array_equal(words[change.positions], change.old):
                raise InstallFailed(f"{change.spec.name}: other old bits")
        self._staged = update

    async def pause(self) -> None:
        self.calls.append("pause")
        self.paused = True

    async def install(self, update: WeightUpdate) -> None:
        self.calls.append(f"install {update.version}")
        if not self.paused or self._staged is not update or self._tensors is None:
            raise InstallFailed(f"version {update.version} is not staged or the engine runs")
        fault, self.fault = self.fault, None
        if fault == "label-first":
            self._version = update.version
        self.install_began.set()
        await self.install_may_go_on.wait()
        if fault == "before":
            raise InstallFailed("rank 0 did not answer")
        for rank, change in enumerate(update.changes):
            if fault is not None and rank == 1:
                self._undo(update.changes[:rank], fault)
            _words(self._tensors, change)[change.positions] = change.new
        self._staged, self._installed = None, update
        self._version, self._digest = update.version, digest_of(self._tensors)

    async def undo(self, update: WeightUpdate) -> None:
        self.calls.append(f"undo {update.version}")
        if self._installed is not update or self._tensors is None:
            raise InstallFailed(f"version {update.version} cannot be undone any more")
        self._installed = None
        for change in update.changes:
            _words(self._tensors, change)[change.positions] = change.old
        self._version, self._digest = update.base, digest_of(self._tensors)

    async def resume(self) -> None:
        self.calls.append("resume")
        self._installed = None
        if self.failing_resumes:
            self.failing_resumes -= 1
            raise EngineError("resume answered 500")
        self.paused = False
        self._changes.wake()

    @property
    def version(self) -> int | None:
        return self._version

    async def weights_digest(self) -> Digest:
        if self._tensors is None:
            raise EngineBroken("no weights")
        return digest_of(self._tensors)

    def encode(self, text: str) -> tuple[int, ...]:
        self.encode_began.set()
        self.encode_may_go_on.wait()
        return tuple((ord(c) - 32) % VOCABULARY for c in text)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(32 + token) if token < 95 else "\n" for token in tokens)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        _check(request)
        self.open_requests += 1
        try:
            for position in range(request.max_tokens):
                await self._until(partial(self._may_make, position))
                # No await until it is made: label and weights are of one moment.
                if self._paced and position >= self._permits_each:
                    self._permits -= 1
                self._made += 1
                self._changes.wake()
                yield self._make(position, request)
                await asyncio.sleep(0)
        finally:
            self.open_requests -= 1
            self._changes.wake()

    async def close(self) -> None:
        self.calls.append("close")

    def _may_make(self, position: int) -> bool:
        permitted = position < self._permits_each or self._permits > 0
        return not self.paused and (permitted or not self._paced)

    def _make(self, position: int, request: GenerationRequest) -> GeneratedToken:
        last = position + 1 == request.max_tokens
        if self._version is None or self._tensors is None:
            raise EngineBroken("the weights are no version")
        if self.crash is not None and position == self.crash_at:
            raise self.crash
        return GeneratedToken(
            token=token_of(digest_of(self._tensors), position),
            logprob=-0.5,
            version=self._version,
            finish_reason="length" if last else None,
            routed_experts=ROUTED if last and request.routed_experts else None,
        )

    def _undo(self, done: Sequence[TensorChanges], fault: Fault) -> None:
        """Rank 1 failed after rank 0 had switched."""
        assert self._tensors is not None
        if fault == "half-broken":
            self._version = None
            raise EngineBroken("rank 1 failed, rank 0 cannot go back")
        for change in done:
            _words(self._tensors, change)[change.positions] = change.old
        if fault == "label-first" and self._staged is not None:
            self._version = self._staged.base
        raise InstallFailed("rank 1 failed, rank 0 went back")

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changes.wait(None)


def _check(request: GenerationRequest) -> None:
    if not request.prompt or request.max_tokens < 1:
        raise RequestUnsupported("expected a prompt and room for a token")
    if not all(0 <= token < VOCABULARY for token in request.prompt):
        raise RequestUnsupported(f"prompt: expected tokens below {VOCABULARY}")
    if len(request.prompt) + request.max_tokens > CONTEXT:
        raise RequestUnsupported(f"expected at most {CONTEXT} tokens")


def token_of(digest: Digest, position: int) -> int:
    """Return the token that weights with `digest` make at an output position."""
    return int(digest_bytes(f"{digest}/{position}".encode())[:8], 16) % VOCABULARY


class Checkpoints:
    """Versions of the stand-in's model on disk, one directory each, made when asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, version: int) -> Path:
        directory = self._root / str(version)
        if not directory.exists():
            random = np.random.default_rng(version)
            ranks = {
                f"rank{rank}.weight": (
                    "BF16",
                    (WORDS,),
                    random.integers(0, 2**16, WORDS, np.uint16).tobytes(),
                )
                for rank in range(2)
            }
            write_checkpoint(directory, ranks)
        return directory

    def digest(self, version: int) -> Digest:
        return digest_of(read_checkpoint(self.path(version)))

    def update(self, base: int, version: int) -> WeightUpdate:
        old, new = read_checkpoint(self.path(base)), read_checkpoint(self.path(version))
        return update_between(base, old, version, new)


def _words(tensors: Tensors, change: TensorChanges) -> Words:
    tensor = tensors[change.spec.name]
    return tensor.spec.view(tensor.data)
