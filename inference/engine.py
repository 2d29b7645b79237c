"""The port every rollout engine stands behind: stage while serving, pause only to install.

An engine makes tokens with one version at a time.  It is told a new version in two moves: `stage`
does all the work that can be done while it still serves, `install` writes the changed words between
`pause` and `resume`.  Every implementation passes `tests.inference.engine_contract`.

EngineError
├── InstallFailed       the old version is back in place   the agent: keep the old label, retry
├── EngineBroken        the weights are no version at all  the agent: load the mirror anew
└── RequestUnsupported  the model cannot run the request   the client: change the request
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skerry.codec.digest import Digest
from skerry.codec.tensors import TensorChanges, TensorSpec


class EngineError(Exception):
    """Base of every error that an engine raises; itself, that a request cannot go on."""


class InstallFailed(EngineError):
    """Nothing changed: the engine still holds, bit for bit, the version it held before."""


class EngineBroken(EngineError):
    """The engine's weights are no version at all; only `load` can help."""


class RequestUnsupported(EngineError):
    """The model cannot run this request, ever: it is too long, or has tokens of no meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """What leads an engine from version `base` to `version`: changed words of HF tensors."""

    base: int
    version: int
    digest: Digest
    changes: Sequence[TensorChanges]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One completion.  `temperature` 0 is greedy; `seed` None is a fresh one.

    With `routed_experts` the last token carries them; RequestUnsupported if the engine cannot.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    routed_experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedToken:
    """One token, the log-probability that it was sampled with, and the version that made it.

    `routed_experts` are those of the whole sequence, on its last token if they were asked for:
    bytes that only engine and trainer read (`skerry.inference.routed`).
    """

    token: int
    logprob: float
    version: int
    finish_reason: str | None = None  # "stop" | "length" on the last token
    routed_experts: bytes | None = None


class Engine(Protocol):
    """A rollout engine that can change its weights while requests run."""

    async def load(self, directory: Path, version: int) -> None:
        """Read a whole checkpoint directory and serve it as `version`.

        Running requests end first.  Raises EngineBroken if the directory cannot be loaded.
        """
        ...

    async def stage(self, update: WeightUpdate) -> None:
        """Prepare `update` while serving: check names, shapes and old bits, locate the words.

        Raises InstallFailed if it does not fit the weights that are served.
        """
        ...

    async def pause(self) -> None:
        """Return once no token is being made.  Running requests keep their state."""
        ...

    async def install(self, update: WeightUpdate) -> None:
        """Write the staged update, all of it or none of it; only between `pause` and `resume`.

        Raises InstallFailed when the old bits are in place again, EngineBroken otherwise.
        """
        ...

    async def resume(self) -> None:
        """Make tokens again.  Idempotent: the agent calls it whatever happened before."""
        ...

    @property
    def version(self) -> int | None:
        """The version that the next token would be made with; None before `load` or when broken."""
        ...

    async def weights_digest(self) -> Digest:
        """Hash the weights that are served, over HF tensor names: equals the version's digest."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokenize.  Called in any thread, and in several at once: a long text takes a while."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        """Yield tokens as they are made.  Closing the generator cancels the request.

        Raises RequestUnsupported before the first token and never after it, EngineError if the
        request must end early.
        """
        ...

    async def close(self) -> None:
        """Stop and release everything."""
        ...


class MirrorReader(Engine, Protocol):
    """An engine that reads the mirror while it installs a patch.

    Others take a patch from its record, before the mirror is rewritten.
    """

    @property
    def reads_mirror(self) -> bool:
        """Whether it does so now."""
        ...


class DrainingEngine(Engine, Protocol):
    """An engine whose `pause` may wait for its running requests, and takes as long as they do."""

    @property
    def pause_drains(self) -> bool:
        """Whether it does so; its caller ends the requests when it has waited long enough."""
        ...


class UndoableEngine(Engine, Protocol):
    """An engine that can go back to what it held before its last install, until it is resumed.

    Only such an engine can be in a group: it may have to, because another one could not follow.
    """

    async def undo(self, update: WeightUpdate) -> None:
        """Put the old words back, between `install` and `resume`.

        Raises InstallFailed if it is too late, and the new version stays; EngineBroken otherwise.
        """
        ...


class PartialEngine(Engine, Protocol):
    """An engine that reads a part of each version: one rank of several, on a host of its own.

    It is given directories whose files have holes, and updates of the part alone.
    """

    def needs(self, spec: TensorSpec) -> Sequence[tuple[int, int]]:
        """Return the byte ranges [start, stop) of a tensor that it reads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedRequest:
    """A request to a route of the engine's own API, by a version that must make all of its answer.

    Headers are those that the engine has a use for; a body is an object that nobody shares.
    """

    route: str
    body: Mapping[str, object]
    version: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedAnswer:
    """What the engine answers, as it comes."""

    status: int
    content_type: str
    pieces: AsyncIterator[bytes]


class PassingEngine(Engine, Protocol):
    """An engine whose own HTTP routes the gate passes on, without reading what they answer."""

    @property
    def routes(self) -> Collection[str]:
        """Return the paths of these routes."""
        ...

    def ask(self, request: PassedRequest) -> AbstractAsyncContextManager[PassedAnswer]:
        """Send the request, with prefix caches kept to its version; leaving cancels it.

        An answer with status 200 says which version made its tokens, as `opaque.told` writes it: an
        object in front, a stream in the last event before its end.  Raises RequestUnsupported for
        what could bring in keys and values of another version, and EngineError if the engine is not
        there, or cannot prove that it serves the version.
        """
        ...
