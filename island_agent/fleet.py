"""The engines of one island: each one switched through the gate, each with its own error.

Law: what the gate advertises for an engine changes only when that engine's own install returned; an
engine that failed half way serves nothing until it has loaded the mirror anew.  None loads a
mirror that is known to be damaged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from skerry.codec.digest import Digest
from skerry.inference.engine import Engine, EngineBroken, WeightUpdate
from skerry.inference.gate import AdmissionGate
from skerry.island_agent.errors import SelectionRefused
from skerry.island_agent.marker import Held
from skerry.island_agent.selection import Part
from skerry.island_agent.status import EngineInstall, EngineStatus, IslandStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WAKE_TRIES = 3
_WAKE_BACKOFF_S = 0.1  # doubles
_WAKE_LIMIT_S = 5.0  # of one try
_INSTALL_ATTEMPTS = 2  # of an engine that says that its old weights are in place again


@dataclass(slots=True)
class Trust:
    """What is known of the mirror's damage, and when each engine had loaded it last.

    `hurry`: the engines that loaded the mirror and hold other weights than they should.
    """

    problem: str | None = None
    hurry: set[str] = field(default_factory=set)
    loaded: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Brings engines to what the mirror holds.  Errors are recorded, never raised.

    `limit_s` bounds one install, load or doubt of an engine: one that hangs is broken, and must not
    hold up the others.  `asleep` are the engines that could not be resumed yet.  `bound` are those
    in groups: their group updates them, and says whether what the mirror holds may be loaded.
    """

    engines: Mapping[str, Engine]
    gate: AdmissionGate
    status: IslandStatus
    drain_s: float | None = None
    verify: bool = False
    audit: bool = False
    limit_s: float | None = None
    part: Callable[[], Part | None] = lambda: None  # what the mirror holds; None: all
    asleep: set[str] = field(default_factory=set)
    ahead: dict[str, int] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    bound: dict[str, Callable[[Held], bool]] = field(default_factory=dict)
    trust: Trust = field(default_factory=Trust)

    def distrust_mirror(self, problem: str) -> None:
        """Let no engine load the mirror until `trust_mirror`."""
        self.trust.problem = problem

    def trust_mirror(self) -> None:
        self.trust.problem = None

    async def doubt(self, good_at: float, held: Held) -> None:
        """Hash every engine that loaded the mirror after `good_at`, when it was last good.

        Until its weights are found to be those of `held` it serves nothing; an engine that holds
        others loads the mirror anew, once that may be trusted.  So does one that holds a part: no
        digest says what its weights should be.
        """
        names = [name for name, at in self.trust.loaded.items() if at >= good_at]
        for name in names:
            problem = f"it loaded a mirror that is damaged: {self.trust.problem}"
            self.gate.set_served(name, None, error=problem)
        self.observe()
        await asyncio.gather(*(self._clear(name, held) for name in names))
        self.observe()

    async def _clear(self, name: str, held: Held) -> None:
        engine = self.engines[name]

        async def hash_weights() -> None:
            if self.part() is not None:
                problem = f"engine {name} loaded a part that is damaged, and no digest clears it"
                self.gate.set_served(name, None, error=problem, revoke=True)
                raise EngineBroken(problem)
            async with asyncio.timeout(self.limit_s):
                found = await engine.weights_digest()
            if found != held.weights:
                problem = f"engine {name} holds weights {found}, expected {held.weights}"
                self.gate.set_served(name, None, error=problem, revoke=True)
                raise EngineBroken(problem)
            free = self.gate.view()[name].target is None and self._may_hold(name, held)
            if free and engine.version == held.version:
                self.gate.set_served(name, held.version)
                self.trust.loaded.pop(name, None)  # what it holds is good, whatever it read
                self.trust.hurry.discard(name)

        await self.guard(name, f"hash of version {held.version}", hash_weights)

    async def wake(self) -> None:
        """Resume every engine: one that an earlier agent left paused would hang its requests."""
        await asyncio.gather(*map(self._wake, self.engines))

    async def wake_rest(self) -> None:
        """Try the engines again that could not be resumed."""
        await asyncio.gather(*(self._wake(name, tries=1) for name in sorted(self.asleep)))

    async def _wake(self, name: str, tries: int = _WAKE_TRIES) -> None:
        async def resume() -> bool:
            for left in reversed(range(tries)):
                try:
                    async with asyncio.timeout(_WAKE_LIMIT_S):
                        await self.engines[name].resume()
                except Exception as error:  # the boundary to foreign engines
                    logger.warning("engine not resumed name=%s error=%r", name, error)
                    if not left:
                        raise
                else:
                    break
                await asyncio.sleep(_WAKE_BACKOFF_S * 2.0 ** (tries - 1 - left))
            return True

        if await self.guard(name, "resume", resume):
            self.asleep.discard(name)
        else:
            self.asleep.add(name)

    async def update(self, update: WeightUpdate, *, early: bool) -> float:
        """Install `update` on every engine that serves its base; return the longest pause, seconds.

        `early`: on those that take it before the mirror has it, otherwise on those that read the
        mirror.  Engines that do not serve its base are left to `load_behind`.
        """
        fit = [
            name
            for name, view in self.gate.view().items()
            if view.version == update.base
            and name not in self.bound
            and reads_mirror(self.engines[name]) is not early
        ]
        pauses = await asyncio.gather(*(self._update(name, update) for name in fit))
        self.observe()
        return max(pauses, default=0.0)

    async def load_behind(self, directory: Path, held: Held) -> float:
        """Load the mirror into every engine that serves another version, or none.

        Returns the longest time in seconds that an engine was away.  A damaged mirror is not loaded
        by any: those that are behind wait until it has been mended.
        """
        if self.trust.problem is not None:
            return 0.0
        behind = self.behind(held)
        pauses = await asyncio.gather(*(self._load(name, directory, held) for name in behind))
        self.observe()
        return max(pauses, default=0.0)

    def behind(self, held: Held) -> list[str]:
        """Name the engines that do not serve what the mirror holds, nor what it is to hold next."""
        return [
            name
            for name, view in self.gate.view().items()
            if view.version not in (held.version, self.ahead.get(name, held.version))
            and self._may_hold(name, held)
        ]

    def _may_hold(self, name: str, held: Held) -> bool:
        return name not in self.bound or self.bound[name](held)

    def disown(self) -> None:
        """Take the label from every engine that says itself that it makes tokens with another one.

        It was restarted, or broke, without the agent's doing.
        """
        for name, view in self.gate.view().items():
            own = self.engines[name].version
            if view.version is not None and view.target is None and own != view.version:
                problem = f"engine {name} says that it serves {own}, expected {view.version}"
                logger.warning("label taken back: %s", problem)
                self.gate.set_served(name, None, error=problem)

    def observe(self) -> None:
        """Copy what the gate says into the status."""
        for name, view in self.gate.view().items():
            engine = self.status.engines.setdefault(name, EngineStatus())
            engine.version = view.version
            if view.error is not None:
                engine.error = view.error

    async def _update(self, name: str, update: WeightUpdate) -> float:
        engine = self.engines[name]

        status = self.status.engines.setdefault(name, EngineStatus())
        status.pause_s = status.scatter_s = status.resume_s = None
        written_at = 0.0

        async def install() -> None:
            nonlocal written_at
            began = self.clock()
            async with asyncio.timeout(self.limit_s):
                await engine.install(update)
                written_at = self.clock()
                status.scatter_s = max(0.0, written_at - began)
                await self.check(name, update.digest)

        async def switch() -> float:
            async with asyncio.timeout(self.limit_s):
                await engine.stage(update)
            report = await self.gate.swap(name, update.version, install, drain_s=self.drain_s)
            status.resume_s = max(0.0, self.clock() - written_at)
            await self.audit_engine(name, update.digest)
            return report.pause_s

        for _ in range(_INSTALL_ATTEMPTS):
            pause_s = await self.guard(name, f"install of version {update.version}", switch)
            if pause_s is not None:
                self.ahead[name] = update.version
                self.installed(name, update.version, "patch", pause_s)
                return pause_s
            if self.gate.view()[name].version != update.base:
                break
        return 0.0

    async def _load(self, name: str, directory: Path, held: Held) -> float:
        async def load() -> None:
            await self.read_mirror(name, directory, held)

        async def switch() -> float:
            check_needs(name, self.engines[name], self.part())
            report = await self.gate.reload(name, held.version, load, drain_s=self.drain_s)
            return report.pause_s

        pause_s = await self.guard(name, f"load of version {held.version}", switch)
        if pause_s is None:
            return 0.0
        self.installed(name, held.version, "load", pause_s)
        return pause_s

    async def read_mirror(self, name: str, directory: Path, held: Held) -> None:
        """Have an engine that serves nothing load the mirror.  Raises what it raises."""
        self.trust.loaded[name] = math.inf  # it may read any byte from now on
        async with asyncio.timeout(self.limit_s):
            await self.engines[name].load(directory, held.version)
            self.trust.loaded[name] = self.clock()
            self.trust.hurry.add(name)  # unless the engine holds what the mirror should
            await self.check(name, held.weights)
            self.trust.hurry.discard(name)

    def installed(
        self, name: str, version: int, kind: Literal["patch", "load"], pause_s: float
    ) -> None:
        engine = self.status.engines[name]
        engine.pause_s = pause_s
        engine.last_install = EngineInstall(
            version=version, kind=kind, pause_s=pause_s, at_unix_s=self.status.clock()
        )
        self.asleep.discard(name)
        self.trust.hurry.discard(name)

    async def check(self, name: str, expected: Digest) -> None:
        if not self.verify:
            return
        found = await self.engines[name].weights_digest()
        if found != expected:
            raise EngineBroken(f"engine {name} holds weights {found}, expected {expected}")

    async def audit_engine(self, name: str, expected: Digest) -> None:
        """Hash what the engine serves by now; one that serves anything else is taken out."""
        if not self.audit:
            return
        found = await self.engines[name].weights_digest()
        if found != expected:
            problem = f"engine {name} serves weights {found}, expected {expected}"
            self.gate.set_served(name, None, error=problem, revoke=True)
            raise EngineBroken(problem)

    async def guard(self, name: str, doing: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Run one engine's work; its failure is its own, whatever a foreign engine raises."""
        engine = self.status.engines.setdefault(name, EngineStatus())
        try:
            result = await work()
        except Exception as error:  # the boundary to foreign engines
            engine.fail(f"{doing}: {error!r}", self.status.clock())
            self.status.fail(error, f"engine {name}: {doing}", f"engine {name}")
            logger.warning("engine failed name=%s doing=%s error=%r", name, doing, error)
            return None
        engine.error = None
        self.status.well(f"engine {name}")
        return result


def reads_mirror(engine: Engine) -> bool:
    """Say whether an engine reads the mirror while it installs a patch; see `MirrorReader`."""
    return bool(getattr(engine, "reads_mirror", False))


def check_needs(name: str, engine: Engine, part: Part | None) -> None:
    """Raises SelectionRefused if an engine needs more than the part that is mirrored.

    One that does not say what it needs, as `PartialEngine` does, needs everything.
    """
    if part is None:
        return
    needs = getattr(engine, "needs", None)
    if needs is None:
        raise SelectionRefused(
            f"engine {name} needs every tensor, the mirror holds {part.selection}"
        )
    for spec in part.tensors:
        for start, stop in needs(spec):
            if not part.covers(spec, start, stop):
                raise SelectionRefused(
                    f"engine {name} needs bytes {start} to {stop} of {spec.name}, which "
                    f"{part.selection} leaves out"
                )
