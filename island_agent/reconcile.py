"""The reconcile loop's one pass: observe, plan, fetch, stage, install, acknowledge.

Level-triggered: a pass looks only at what the log says and what the mirror and the engines hold,
so it makes no difference why they differ.  Versions that came together are one route, one install.

A route by patches that fails is repeated when the road is at fault, and replaced by a route over a
full version when its content is (law A-1: no failed install ever counts as one).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from skerry.bulletin.errors import NoPath, NotFound
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Full, ObjectRef, Record
from skerry.bulletin.state import LogState
from skerry.codec.digest import Digest
from skerry.codec.errors import CodecError
from skerry.inference.decision import KnownVersions
from skerry.inference.engine import WeightUpdate
from skerry.island_agent import assemble, plan
from skerry.island_agent.demand import Demand
from skerry.island_agent.errors import (
    LeavesUnknown,
    MirrorDamaged,
    ObjectCorrupt,
    ObjectUnavailable,
    VersionCollected,
)
from skerry.island_agent.fetch import Fetcher
from skerry.island_agent.files import remove, sync_directory, tree_files
from skerry.island_agent.fleet import Fleet
from skerry.island_agent.groups.ballots import Served
from skerry.island_agent.groups.groups import Groups
from skerry.island_agent.hooks import FILE_FETCHED, TENSOR_DECODED, Hook
from skerry.island_agent.install import load_packs
from skerry.island_agent.journal import Journal
from skerry.island_agent.marker import Held
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.plan import Route, Target
from skerry.island_agent.room import check_room, disk_error, is_full
from skerry.island_agent.status import InstallReport, IslandStatus
from skerry.island_agent.stopwatch import StopWatch, describe

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

OnRecords = Callable[[LogState, tuple[Record, ...]], None]

_ENGINES_FIRST_S = 1.0  # how long the mirror waits for engines
_PATIENCE = 3  # failures on the road before a route over a full version is tried


@dataclass(frozen=True, slots=True)
class _Begun:
    """An install under way: its route, the version before it, and what had been read by then."""

    route: Route
    base: int | None
    bytes_read: int


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Brings one island to its target.  `step` is for one task at a time."""

    reader: BulletinReader
    mirror: Mirror
    fetcher: Fetcher
    fleet: Fleet
    target: Target
    status: IslandStatus
    hook: Hook
    pool: Executor  # one thread: whoever closes the mirror waits for it
    demand: Demand | None = None  # reads a part only
    groups: Groups | None = None
    on_records: OnRecords = lambda state, records: None
    watch: StopWatch = field(default_factory=StopWatch)
    _begun: _Begun | None = None  # an install that has not ended well so far
    _left: bool = True  # downloads may lie about
    _busy: int = 0
    _in_step: bool = False  # the last look went to the end of the log
    _told: int = -1  # the slot of the log that the gate knows of
    _distrust: int = 0  # grows with each failure of a route by patches; _PATIENCE: try another
    _refused: list[frozenset[Digest]] = field(default_factory=list)  # packs that fail together

    async def step(self) -> bool:
        """Make one pass; say whether anything moved.

        Raises whatever the pass met, DiskError for this host's disk; then nothing counts as
        installed, and the next pass starts from what is there.
        """
        try:
            return await self._step()
        except OSError as error:  # engines and the bulletin have errors of their own
            where = self.mirror.places.root
            raise disk_error(error, where, f"{self.status.phase}: the island") from error

    async def _step(self) -> bool:
        before = self.mirror.held
        await self._settle()
        await self.fleet.wake_rest()
        moved = await self._load_engines() or self.mirror.held != before
        await self._observe_log()
        held = self.mirror.held
        want = plan.choose(self.reader.state, self.target, held)
        if self.groups is not None:
            want = self._goes(self.groups, want, held)
        self.status.wanted = want
        if want is None or (held is not None and want == held.version):
            self.fleet.ahead.clear()  # whoever is not at what is wanted loads it
            self.status.phase = "idle"
            if held is not None and self._left:
                await self._do(self._acknowledge)
                self._left = False
            self.status.well()
            return moved
        route = self._route(want)
        self.status.reading = route.legs
        self._begun = _Begun(route, self.mirror.version, self.fetcher.progress.bytes_read)
        self._left = True
        try:
            with self._occupied():
                await self._install(route)
        except (NotFound, ObjectUnavailable) as error:
            # Collected meanwhile: that is nobody's fault, and the next pass goes another way.
            await self._do(self._read_log)
            name = plan.collected(self.reader.state, route)
            if name is not None:
                raise VersionCollected(want, name) from error
            if isinstance(error, ObjectUnavailable):
                await self._learn(route, error)
            raise
        except (CodecError, ObjectCorrupt, MirrorDamaged, LeavesUnknown) as error:
            await self._learn(route, error)
            raise
        except OSError as error:
            if route.anchor is None and is_full(error):
                # Of a full version that was interrupted: kept only as long as there is room.
                await self._do(remove, self.mirror.places.incoming)
            raise
        finally:
            self.status.reading = ()
        self._begun, self._left = None, False
        self._distrust = 0
        self._refused.clear()
        self.status.well()
        return True

    def _goes(self, groups: Groups, want: int | None, held: Held | None) -> int | None:
        """Return where the groups have the mirror go, whose `want` this is.  As `plan.choose`."""
        state = self.reader.state
        wants = held if want is None or (held and want == held.version) else None
        served = None if wants is None else Served(wants.version, wants.weights)
        if want is not None and wants is None:
            served = Served(want, state.commits[want].result)
        goes = groups.turn(served, held, self.mirror.directory)
        if goes is None or (held is not None and goes == held.version):
            return goes
        return plan.choose(state, Target(version=goes), held)

    async def _settle(self) -> None:
        """Have the mirror finish what failed half way, and count an install that it finished."""
        try:
            await self._do(self.mirror.settle)
        except OSError:
            if self.mirror.is_settled:  # only words about it could not be written
                await self._load_engines()
            raise
        begun, self._begun = self._begun, None
        held = self.mirror.held
        if begun is None or held is None or held != begun.route.target:
            return
        full = begun.route.anchor is not None
        report = InstallReport(
            version=held.version,
            base=begun.base,
            steps=len(begun.route.patches) + full,
            full=full,
            digest=held.weights,
            nbytes=self.fetcher.progress.bytes_read - begun.bytes_read,
            changed=None,
            pause_s=0.0,
            at_unix_s=self.status.clock(),
            phases=self.watch.phases(),
            **self.watch.seconds(),
        )
        self.status.installed(report)
        logger.info("install finished late version=%d base=%s", held.version, begun.base)

    @property
    def busy(self) -> bool:
        """Whether an install is under way, or engines load the mirror: the scrub gives way."""
        return self._busy > 0 or (self.groups is not None and self.groups.busy)

    @contextmanager
    def _occupied(self) -> Iterator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def mark(self, step: str) -> None:
        """The hook of mirror and fetcher: note the time, notice a shutdown, pass it on."""
        self.watch.mark(step)
        if step in (TENSOR_DECODED, FILE_FETCHED):
            self.fetcher.check_stop()
        self.hook(step)

    def _mark_or_stop(self, step: str) -> None:
        """The hook of work on a directory that nobody reads, which may end anywhere."""
        self.fetcher.check_stop()
        self.mark(step)

    async def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in the mirror's own thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, partial(work, *args, **kwargs))

    async def _observe_log(self) -> None:
        self.status.phase = "observing"
        began, known = self.watch.clock(), self.reader.state.nbytes
        # While a request waits and the last look, moments ago, went to the end, one version is all
        # there is to expect.  Whatever else came is found by the next pass.
        hurry = self._in_step and self.fleet.gate.waiting > 0
        self._in_step = False
        records = await self._do(self._read_log, one_version=hurry)
        self._in_step = not (hurry and records)
        state = self.reader.state
        self.watch.note("manifest", seconds=self.watch.clock() - began, nbytes=state.nbytes - known)
        if state.run is None:
            return
        await self._do(self.mirror.bind, state.run)
        newest = state.newest
        self.status.run = self.mirror.run
        self.status.newest = None if newest is None else newest.version
        self.status.newest_step = None if newest is None else newest.step
        if records:
            logger.info("log read seq=%d newest=%s", state.seq, self.status.newest)
        if self._told != state.seq:
            self._told = state.seq
            kept = (v for v in state.commits if v not in state.retired)
            self.fleet.gate.tell(
                KnownVersions(
                    newest=self.status.newest,
                    oldest=min(kept, default=0),
                    abandoned=state.abandoned,
                )
            )
        self.status.lag = plan.lag(state, self.mirror.version)

    def _read_log(self, *, one_version: bool = False) -> tuple[Record, ...]:
        records = self.reader.refresh(one_version=one_version)
        self.on_records(self.reader.state, records)
        return records

    def _observe_mirror(self) -> None:
        self.status.held = self.mirror.held
        part = self.mirror.part
        self.status.part_bytes = None if part is None else part.nbytes
        self.status.damage = self.mirror.damage
        self.fleet.observe()

    async def _load_engines(self) -> bool:
        """Serve what is held before asking anything of the bulletin, which may be out of reach."""
        self.fleet.disown()
        self._observe_mirror()
        held = self.mirror.held
        behind = [] if held is None else self.fleet.behind(held)
        if held is None or not behind:
            return False
        self.status.phase = "installing"
        with self._occupied():
            await self.fleet.load_behind(self.mirror.directory, held)
        return self.fleet.behind(held) != behind  # engines that go on failing are no movement

    def _route(self, want: int) -> Route:
        state, have = self.reader.state, self.mirror.version
        if self._distrust >= _PATIENCE and have is not None:
            try:
                anew = plan.route(state, have=None, want=want)
            except NoPath:
                anew = None
            if anew is not None and not self._is_refused(anew):
                return anew
            self._distrust = 0
        try:
            route = plan.route(state, have=have, want=want)
        except NoPath:
            if self.target.version is not None:
                raise
            return plan.nearest(state, have=have, want=want)
        idle = have is None and not self.fleet.gate.served()
        if idle and route.anchor is not None and self._is_refused(route):
            return plan.route(state, have=None, want=route.anchor.held.version)
        return route

    def _is_refused(self, route: Route) -> bool:
        """Say whether all packs of a route whose content failed are on this one.

        A full version is not fetched again, pass after pass, only to fail at the same pack.
        """
        packs = _digests(route)
        return any(refused <= packs for refused in self._refused)

    def _refuse(self, route: Route) -> None:
        if route.packs and not self._is_refused(route):
            self._refused.append(_digests(route))

    async def _learn(self, route: Route, error: Exception) -> None:
        """After a failure: is the mirror sound, and is the route worth another try?"""
        content = isinstance(error, CodecError | ObjectCorrupt | LeavesUnknown)
        if route.anchor is not None:
            self._distrust = 0
            if content:
                self._refuse(route)
            return
        self._distrust += 1 if isinstance(error, ObjectUnavailable) else _PATIENCE
        if isinstance(error, CodecError | MirrorDamaged) and self.mirror.held is not None:
            await self._do(self.mirror.settle)
            if self.mirror.held is not None:
                await self._do(self.mirror.check)
        if content and self.mirror.held is not None:  # so the mirror was not at fault
            self._refuse(route)

    async def _install(self, route: Route) -> None:
        base, read = self.mirror.version, self.fetcher.progress.bytes_read
        logger.info(
            "install begins version=%d base=%s steps=%d full=%s bytes=%d",
            route.target.version, base, len(route.patches), route.anchor is not None, route.nbytes,
        )  # fmt: skip
        self.watch.start()
        self.status.phase, self.status.bytes_total = "fetching", route.nbytes
        self.fetcher.begin()
        await self._do(self._fetch, route)
        self.status.phase = "staging"
        if route.anchor is None:
            journal = await self._do(self._stage, route)
            self.status.phase = "installing"
            pause_s = await self._switch(journal)
            changed = journal.changed
            self._account(route, journal, pause_s)
        else:
            async with self._alone():
                await self._do(self._swap, route)
            self.fleet.trust_mirror()  # every byte of it was hashed just now
            assert route.anchor is not None
            held_part = self.mirror.part
            whole = route.anchor.full.nbytes
            self.watch.note("verify", nbytes=whole if held_part is None else held_part.nbytes)
            self.watch.note("decode", nbytes=sum(ref.size for ref in route.packs))
            self.status.phase = "installing"
            self._observe_mirror()
            pause_s, changed = 0.0, None
        held = self.mirror.held
        assert held is not None
        self.fleet.ahead.clear()
        pause_s = max(pause_s, await self.fleet.load_behind(self.mirror.directory, held))
        if self.groups is not None:
            self.status.phase = "grouping"
            await self.groups.settled(held)
            self.fleet.observe()
        self.mark("engines-installed")
        await self._do(self._acknowledge)
        self.mark("acknowledged")
        self.status.phase = "idle"
        self.status.lag = plan.lag(self.reader.state, held.version)
        self.watch.note("fetch", nbytes=self.fetcher.progress.bytes_read - read)
        phases = self.watch.phases()
        report = InstallReport(
            version=held.version,
            base=base,
            steps=len(route.patches) + (route.anchor is not None),
            full=route.anchor is not None,
            digest=held.weights,
            nbytes=self.fetcher.progress.bytes_read - read,
            changed=changed,
            pause_s=pause_s,
            at_unix_s=self.status.clock(),
            phases=phases,
            **self.watch.seconds(),
        )
        self.status.installed(report)
        logger.info(
            "install ended version=%d base=%s steps=%d full=%s weights=%s %s",
            held.version, base, report.steps, report.full, held.weights, describe(phases),
        )  # fmt: skip

    def _account(self, route: Route, journal: Journal, pause_s: float) -> None:
        """Note what the marks do not tell of an install by patches."""
        packed = sum(ref.size for ref in route.packs)
        if self.demand is not None:
            packed = self.fetcher.progress.job_bytes  # the part of them that was read
        self.watch.note("decode", nbytes=packed)
        self.watch.note("journal", seconds=journal.written_s, nbytes=journal.nbytes)
        self.watch.note("verify", nbytes=journal.touched_bytes)
        self.watch.note("apply", nbytes=journal.changed_bytes)
        slowest = max(
            (e for e in self.status.engines.values() if e.scatter_s is not None),
            key=lambda engine: engine.pause_s or 0.0,
            default=None,
        )
        if slowest is not None and pause_s:
            scatter_s, resume_s = slowest.scatter_s or 0.0, slowest.resume_s or 0.0
            self.watch.note("pause", seconds=pause_s - scatter_s - resume_s)
            self.watch.note("scatter", seconds=scatter_s, nbytes=journal.changed_bytes)
            self.watch.note("resume", seconds=resume_s)

    def _fetch(self, route: Route) -> None:
        places = self.mirror.places
        if self.demand is not None:
            if route.anchor is None:
                assert self.mirror.held is not None
                self.demand.foreign(self.mirror.weights(), self.mirror.held, route.target)
                self.fetcher.reserve(())
                self.demand.fetch_patches(route.patches, self.mirror.layout(), places.spool)
            else:
                self.demand.download(route, places.incoming, places.spool, self.mark)
            sync_directory(places.spool)
            self.mark("objects-spooled")
            return
        assemble.make_way(route, places.incoming, self.fetcher)
        wanted = [] if route.anchor is None else self._missing_files(route.anchor.full)
        check_room(
            places.root,
            f"version {route.target.version}, downloaded,",
            self.fetcher.missing(route.packs) + self.fetcher.missing(wanted),
        )
        if route.anchor is None:
            self.fetcher.fetch_all(route.packs)
        else:
            assemble.download(route, places.incoming, self.fetcher, self.reader.layout, self.mark)
        sync_directory(places.spool)
        self.mark("objects-spooled")

    def _missing_files(self, full: Full) -> list[ObjectRef]:
        """Return the files of a full version that no earlier try has put in place, by size."""
        sizes = tree_files(self.mirror.places.incoming)
        pairs = zip(full.files, full.objects, strict=True)
        return [ref for file, ref in pairs if sizes.get(file.name) != file.size]

    def _stage(self, route: Route) -> Journal:
        layout = self.reader.layout(route.target.layout)
        if self.demand is not None:
            origin, base = self.mirror.held, self.mirror.layout()
            assert origin is not None
            foreign = self.demand.foreign(self.mirror.weights(), origin, route.target)
            packs = self.demand.packs(route.patches, base, self.mirror.places.spool)
            return self.mirror.stage(packs, route.target, layout, foreign=foreign)
        packs = load_packs(route.patches, self.mirror.places.spool, self.mirror.layout())
        return self.mirror.stage(packs, route.target, layout)

    def _swap(self, route: Route) -> None:
        places = self.mirror.places
        if self.demand is not None:
            layout, weights = self.demand.build(
                route,
                places.incoming,
                places.spool,
                scratch=places.state,
                hook=self._mark_or_stop,
                threads=self.mirror.threads,
            )
        else:
            layout, weights = assemble.build(
                route,
                places.incoming,
                places.spool,
                self.reader.layout,
                scratch=places.state,
                hook=self._mark_or_stop,
                threads=self.mirror.threads,
            )
        self.mark("assembled")
        self.mirror.swap_in(route.target, layout, weights)

    async def _switch(self, journal: Journal) -> float:
        """Switch engines and mirror to what is recorded; return the longest pause, seconds.

        Engines that need no mirror go first, as nothing can undo the record any more: writing,
        hashing and syncing the mirror takes far longer than they do.  One that is slow (it drains)
        does not hold up the mirror.
        """
        update = WeightUpdate(
            base=journal.origin.version,
            version=journal.target.version,
            digest=journal.target.weights,
            changes=journal.changes,
        )
        if self.groups is not None:
            self.groups.offer(update)
        early = asyncio.create_task(self.fleet.update(update, early=True))
        await asyncio.wait({early}, timeout=_ENGINES_FIRST_S)
        self.mark("engines-switched")
        try:
            async with self._alone():
                await self._do(self.mirror.apply, journal)
            self._observe_mirror()
        finally:
            first_s = await early
        return max(first_s, await self.fleet.update(update, early=False))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Change the mirror while no engine of a group reads it."""
        if self.groups is None:
            yield
            return
        async with self.groups.writing():
            try:
                yield
            finally:
                self.groups.moved(self.mirror.held, self.mirror.directory)

    def _acknowledge(self) -> None:
        self.mirror.acknowledge()
        self.fetcher.release()
        remove(self.mirror.places.incoming)  # what an interrupted full left: not needed any more


def _digests(route: Route) -> frozenset[Digest]:
    return frozenset(ref.digest for ref in route.packs)
