"""The scrub: bytes that changed at rest are found, and mended from the bulletin.

Part by part, at a bounded rate and the lowest priority, it hashes what the mirror holds.  It reads
as any other process would (see `reading`): what it saw counts when the mirror was the same before
and after.  It gives way to an install at once, in the middle of a part.

    damage found        no engine loads the mirror; engines that loaded it since that part was last
                        known to be good serve nothing until their own weights have been hashed
    repair-fetched ...  the part is read again from the bulletin and put in place (see `hooks`)
    mended              engines may load the mirror again; those that hold other weights do

The marker, the layout and the leaf digests are looked at once a pass, and written anew from memory.

Where no repair is possible, because nothing leads to the version any more or a file is missing,
the mirror is condemned, and the agent begins again from a full version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from skerry.bulletin.errors import NoPath, VersionGone
from skerry.bulletin.reader import BulletinReader
from skerry.codec.errors import CodecError
from skerry.codec.layout import Layout
from skerry.island_agent import plan
from skerry.island_agent.errors import ChainRefused, MirrorDamaged
from skerry.island_agent.fleet import Fleet
from skerry.island_agent.hooks import Hook
from skerry.island_agent.marker import Held
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.parts import Part, PartName, digest_part, is_damage, parts_of, take
from skerry.island_agent.reading import look
from skerry.island_agent.recover import recover_file, recover_leaf
from skerry.island_agent.repair import Repair
from skerry.island_agent.status import IslandStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE = 3  # objects that give other bytes so often never give the right ones
_LOWEST = 19  # the nice value


@dataclass(slots=True, kw_only=True)
class Pacer:
    """Spreads bytes over time: never more than `bytes_per_s`, but for one slice ahead."""

    bytes_per_s: int
    _free_at: float = 0.0

    def delay_s(self, nbytes: int, now: float) -> float:
        """Return how long to wait after `nbytes` that were read by `now`."""
        self._free_at = max(self._free_at, now) + nbytes / self.bytes_per_s
        return self._free_at - now


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look at a few parts found: the damaged ones, and those that could not be looked at."""

    bad: list[Part] = field(default_factory=list)
    unread: dict[Part, OSError] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Scrubber:
    """Looks after one mirror.  `turn` and `run` are for one task at a time."""

    mirror: Mirror
    reader: BulletinReader
    fleet: Fleet
    status: IslandStatus
    hook: Hook
    pool: Executor  # the mirror's thread
    busy: Callable[[], bool]  # an install is under way
    pacer: Pacer
    slice_bytes: int = 16 * 1024 * 1024  # hashed between two pauses, or one part if that is larger
    retry_limit_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    checked_at: float = 0.0  # every part was good then: the mirror was hashed as it was opened
    on_doubt: Callable[[], None] = lambda: None  # what was read is not what it should be
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(
            1, thread_name_prefix="skerry-scrub", initializer=give_way
        )
    )
    _of: Held | None = None
    _layout: Layout | None = None
    _parts: Sequence[Part] = ()
    _next: int = 0
    _next_bad: int = 0
    _again: bool = False  # this turn is about parts that are known to be bad
    _good: dict[PartName, float] = field(default_factory=dict)
    _bad: set[PartName] = field(default_factory=set)
    _refused: Counter[PartName] = field(default_factory=Counter)
    _stopped: bool = False

    async def run(self, idle_s: float, pass_s: float = 0.0) -> None:
        """Scrub until cancelled: at most one pass each `pass_s`.

        After a repair that failed, wait longer each time.  At full speed while an engine that
        loaded the mirror holds other weights than it should.
        """
        retry_s, passes, began = idle_s, self.status.scrub.passes, self.clock()
        while True:
            if passes != self.status.scrub.passes:
                if not self.fleet.trust.hurry:
                    await asyncio.sleep(max(0.0, pass_s - (self.clock() - began)))
                passes, began = self.status.scrub.passes, self.clock()
            try:
                nbytes = await self.turn()
            except Exception as error:  # the boundary of the scrub's loop: engines wait for it
                self.status.fail(error, "scrubbing", "scrub")
                self.status.scrub.failures += 1
                logger.warning("repair failed error=%r", error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, self.retry_limit_s)
            else:
                retry_s = idle_s
                if nbytes and not self._bad:
                    self.status.well("scrub")
                wait_s = self.pacer.delay_s(nbytes, self.clock()) if nbytes else idle_s
                wait_s = max(wait_s, idle_s) if self._bad else wait_s
                if self.fleet.trust.hurry and nbytes and not self._bad:
                    wait_s = 0.0
                await asyncio.sleep(wait_s)

    async def turn(self) -> int:
        """Hash the next few parts, mend what is found; return how many bytes were hashed.

        Every other turn is about parts that are known to be bad: one that cannot be mended hides
        no other damage.  Raises the first thing that a repair or a read failed at, after it tried
        them all.
        """
        if self.busy() or not await self._observe():
            return 0
        assert self._of is not None
        bad = [part for part in self._parts if part.name in self._bad]
        self._again = bool(bad) and not self._again
        if self._again:
            self._next_bad %= len(bad)
            parts = take(bad, self._next_bad, self.slice_bytes)
        else:
            parts = take(self._parts, self._next, self.slice_bytes)
        began = self.clock()
        if self._next == 0 and not self._again:
            await self._restore()
        try:
            seen = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._scan, self._of, parts
            )
        except MirrorDamaged:  # the marker
            seen = None
        if seen is None:
            if not self._gives_way():
                await self._restore()
            return 0
        nbytes = sum(part.nbytes for part in parts)
        self.status.scrub.bytes += nbytes
        if self._again:
            self._next_bad += len(parts)
        else:
            self._advance(len(parts))
        for part in parts:
            if part not in seen.bad and part not in seen.unread:
                self._good[part.name] = began
                self._bad.discard(part.name)
        try:
            if not self.busy():  # or else an install began just now; they are found after it
                await self._suspect(seen.bad)
                await self._mend_all(seen.bad)
        finally:
            if not self._bad:
                self.fleet.trust_mirror()
            self.status.scrub.suspects = sorted(map(str, self._bad))
        for error in seen.unread.values():
            raise error
        return nbytes

    def stop(self) -> asyncio.Future[None]:
        """Give up what is under way; the future is done when the thread is free.

        A read from a store that never answers cannot be ended: then it never is.
        """
        self._stopped = True
        return asyncio.get_running_loop().run_in_executor(self._thread, _nothing)

    def close(self) -> None:
        """Give up what is under way, and wait for the thread."""
        self._stopped = True
        self._thread.shutdown(wait=True)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def _observe(self) -> bool:
        """Take over what the mirror holds now; say whether there is anything to look at."""
        found = await self._do(self.mirror.parts)
        if found is None:
            return False
        held, layout, weights, mirrored = found
        if held != self._of:
            self._take(held, layout, parts_of(layout, weights, mirrored))
        return bool(self._parts)

    def _take(self, held: Held, layout: Layout, parts: Sequence[Part]) -> None:
        self._of, self._layout, self._parts = held, layout, parts
        self._next %= max(1, len(self._parts))  # versions of one structure have the same parts
        names = {part.name for part in self._parts}
        self._bad &= names
        self._good = {name: at for name, at in self._good.items() if name in names}

    def _advance(self, count: int) -> None:
        self._next += count
        if self._next >= len(self._parts):
            self._next = 0
            self.status.scrub.passes += 1
            self.status.scrub.last_pass_unix_s = self.status.clock()
            logger.debug("scrub pass ended version=%s", self.status.version)

    def _scan(self, held: Held, parts: Sequence[Part]) -> _Seen | None:
        """Say which parts are not what they should be; None if the mirror was changing."""
        root, directory = self.mirror.places.root, self.mirror.directory
        before = look(root)
        if before is None or before.held != held:
            return None
        seen = _Seen()
        for part in parts:
            try:
                found = digest_part(directory, part, self._gives_way)
            except OSError as error:
                logger.warning("mirror unreadable part=%s error=%r", part.name, error)
                if is_damage(error):
                    seen.bad.append(part)
                else:  # of this process or this host: it says nothing of the bytes
                    seen.unread[part] = error
                continue
            if found is None:
                return None
            if found != part.digest:
                seen.bad.append(part)
        return seen if look(root) == before else None

    def _gives_way(self) -> bool:
        return self._stopped or self.busy()

    async def _restore(self) -> None:
        """Mend the files that say what the mirror is: this process knows what they must say."""
        wrong = await self._do(self.mirror.restore_state)
        self.status.scrub.damaged += len(wrong)
        self.status.scrub.repaired += len(wrong)

    async def _suspect(self, found: Sequence[Part]) -> None:
        """Tell of all damage that is new, and doubt the engines that may have loaded any of it."""
        assert self._of is not None
        new = [part.name for part in found if part.name not in self._bad]
        if not new:
            return
        self._bad.update(new)
        self.status.scrub.damaged += len(new)
        self.status.scrub.suspects = sorted(map(str, self._bad))
        for name in new:
            logger.error("mirror damaged version=%d part=%s", self._of.version, name)
        self.fleet.distrust_mirror(f"damaged: {', '.join(map(str, new))}")
        await self.fleet.doubt(min(self._good.get(name, self.checked_at) for name in new), self._of)

    async def _mend_all(self, found: Sequence[Part]) -> None:
        """Mend what can be mended.  Raises the first error, after all were tried."""
        errors: list[Exception] = []
        for part in found:
            try:
                await self._mend(part)
            except Exception as error:  # of this part: the others are no worse for it
                logger.warning("part not mended part=%s error=%r", part.name, error)
                errors.append(error)
        if errors:
            raise errors[0]

    async def _mend(self, part: Part) -> None:
        if self.busy() or self.mirror.held != self._of:
            return
        assert self._of is not None
        if self._of.version not in self.reader.state.commits:
            return  # the log has not been read so far; a later turn comes back
        loop = asyncio.get_running_loop()
        try:
            repair = await loop.run_in_executor(self._thread, self._fetch, part)
        except (NoPath, VersionGone, ChainRefused, MirrorDamaged) as error:
            hopeless: Exception = error
        except CodecError as error:  # a road that lies may be mended, objects that do never are
            self.on_doubt()
            self._refused[part.name] += 1
            if self._refused[part.name] < _PATIENCE:
                raise
            hopeless = error
        else:
            await self._put(repair, part)
            return
        logger.warning("no repair for part=%s: %s", part.name, hopeless)
        await self._do(partial(self._condemn, self._of, f"{part.name}: {hopeless}"))

    async def _put(self, repair: Repair, part: Part) -> None:
        if await self._do(partial(self.mirror.repair, repair)):
            self._bad.discard(part.name)
            self._refused.pop(part.name, None)
            self._good[part.name] = self.clock()
            self.status.scrub.repaired += 1
            logger.info(
                "mirror mended version=%d part=%s bytes=%d",
                repair.held.version, part.name, len(repair.data),
            )  # fmt: skip

    def _condemn(self, held: Held, reason: str) -> None:
        if self.mirror.held == held:
            self.mirror.condemn(reason)

    def _fetch(self, part: Part) -> Repair:
        """Get the right bytes of a part; runs beside everything else."""
        held, layout, run = self._of, self._layout, self.mirror.run
        assert held is not None
        assert layout is not None
        assert run is not None
        self._check_place(part)
        offset: int | None = part.start
        if part.name.kind == "header":
            data = next(s.header for s in layout.shards if s.name == part.name.file)
        else:
            route = plan.route(self.reader.state, have=None, want=held.version)
            name, store = part.name, self.reader.store
            if name.kind == "side file":
                offset = None
                data = recover_file(store, route, layout, name.file, part.size, part.digest)
            else:
                data = recover_leaf(store, route, layout, name.tensor, name.leaf, part.digest)
        self.hook("repair-fetched")
        return Repair(run=run, held=held, file=part.name.file, offset=offset, data=data)

    def _check_place(self, part: Part) -> None:
        """Raises MirrorDamaged if the file is not one whose bytes can be put in place."""
        path = self.mirror.directory / part.name.file
        plain = path.is_file() and not path.is_symlink()
        if part.name.kind == "side file":
            mendable = plain or not (path.exists() or path.is_symlink())
        else:
            mendable = plain and path.stat().st_size == part.size
        if not mendable:
            raise MirrorDamaged(f"{part.name.file} is not a file of {part.size} bytes any more")


def _nothing() -> None:
    """Tell by being done that the thread has done all before."""


def give_way() -> None:
    """Let this thread run only when nothing else wants to, on the CPU and at the disk."""
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)  # on Linux: of this thread
