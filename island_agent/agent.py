"""One island: it follows a run's log, keeps the mirror, and switches its engines.

The agent needs neither torch nor an HTTP stack; `service` puts one around it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from skerry.bulletin.errors import RecordInvalid, Tampered
from skerry.bulletin.reader import BulletinReader
from skerry.codec.errors import CodecError
from skerry.inference.engine import Engine
from skerry.inference.gate import AdmissionGate
from skerry.island_agent import plan
from skerry.island_agent.announce import Announcer
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.demand import Demand
from skerry.island_agent.errors import LogBehind, ObjectCorrupt, Stopped
from skerry.island_agent.fetch import Fetcher
from skerry.island_agent.files import remove
from skerry.island_agent.fleet import Fleet
from skerry.island_agent.groups.groups import Groups, Membership
from skerry.island_agent.hooks import Hook, no_hook
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.plan import Target
from skerry.island_agent.reconcile import OnRecords, Reconciler
from skerry.island_agent.room import own_directory, writing
from skerry.island_agent.scrub import Pacer, Scrubber
from skerry.island_agent.selection import Part
from skerry.island_agent.state import Places
from skerry.island_agent.status import EngineStatus, IslandStatus

logger = logging.getLogger(__name__)

# Whoever handed this on may be at fault, and not the bulletin.
_DOUBTFUL = (ObjectCorrupt, Tampered, RecordInvalid, CodecError, LogBehind)


class Agent:
    """Reader, mirror, gate and engines: `open`, then `run` or single `step`s, then `close`."""

    def __init__(
        self,
        config: AgentConfig,
        reader: BulletinReader,
        *,
        engines: Mapping[str, Engine] | None = None,
        gate: AdmissionGate | None = None,
        membership: Membership | None = None,
        hook: Hook = no_hook,
        on_records: OnRecords = lambda state, records: None,
        on_doubt: Callable[[], None] = lambda: None,
    ) -> None:
        """`gate`, made for the same engines, is the one that requests go through.  `membership`
        has some of them switch together with those of other agents.

        `on_records` is told in the mirror's thread what each look at the log has verified,
        `on_doubt` when something was read that is not what it should be.

        The engines stay the caller's: `close` leaves them running and resumed.
        """
        self.config = config
        self.reader = reader
        self.engines = dict(engines or {})
        self.gate = gate or AdmissionGate(self.engines)
        self.state = IslandStatus(island=config.island, history_limit=config.history)
        for name in self.engines:
            self.state.engines[name] = EngineStatus()
        self._fleet = Fleet(
            engines=self.engines,
            gate=self.gate,
            status=self.state,
            drain_s=config.drain_s,
            verify=config.verify_engines,
            audit=config.audit_engines,
            limit_s=config.engine_limit_s,
            part=self._part,
        )
        self._membership = membership
        self._groups: Groups | None = None
        self.state.part = None if config.selection is None else str(config.selection)
        self._hook = hook
        self._on_records = on_records
        self._on_doubt = on_doubt
        self._loop: asyncio.AbstractEventLoop | None = None
        self.gate.on_wait(self.nudge)
        self._target = self.state.target = config.target
        self.state.within = self._within
        self._halt = threading.Event()
        self._stopping = asyncio.Event()
        self._nudged = asyncio.Event()
        self._hastened = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="skerry-mirror")
        self._closed = False
        self._mirror: Mirror | None = None
        self._reconciler: Reconciler | None = None
        self._scrubber: Scrubber | None = None

    @property
    def scrubber(self) -> Scrubber | None:
        """What looks after the mirror's bytes; None when it was told not to."""
        return self._scrubber

    @property
    def groups(self) -> Groups | None:
        """The groups that it is in, once it is open."""
        return self._groups

    @property
    def mirror(self) -> Mirror:
        if self._mirror is None:
            raise RuntimeError("the agent is not open")
        return self._mirror

    def status(self) -> Mapping[str, object]:
        """Return a JSON-ready snapshot, at once."""
        self._fleet.observe()
        return self.state.to_json()

    @property
    def ready(self) -> bool:
        """Whether an engine serves, or without engines the mirror holds a version."""
        self._fleet.observe()
        return self.state.ready

    async def open(self) -> None:
        """Lock and recover the mirror, resume engines.  Raises MirrorBusy or DiskError."""
        loop = self._loop = asyncio.get_running_loop()
        threads, fetch = self.config.fitted()
        spool = Places(self.config.root).spool
        fetcher = Fetcher(self.reader.store, spool, fetch, stop=self._halt)
        self.state.progress = fetcher.progress
        opening = self._fleet.clock()
        self._mirror = await loop.run_in_executor(self._pool, self._open_mirror, threads)
        self._groups = self._open_groups()
        self._reconciler = Reconciler(
            reader=self.reader,
            mirror=self._mirror,
            fetcher=fetcher,
            fleet=self._fleet,
            target=self._target,
            status=self.state,
            hook=self._hook,
            pool=self._pool,
            demand=self._demand(fetcher),
            on_records=self._on_records,
            groups=self._groups,
        )
        self.state.held, self.state.damage = self._mirror.held, self._mirror.damage
        self.state.run = self._mirror.run
        logger.info(
            "island opened island=%s version=%s directory=%s in_memory=%s",
            self.config.island, self.state.version, self.config.root, self.config.in_memory,
        )  # fmt: skip
        if self.config.scrub_bytes_per_s:
            reconciler = self._reconciler
            self._scrubber = Scrubber(
                mirror=self._mirror,
                reader=self.reader,
                fleet=self._fleet,
                status=self.state,
                hook=self._hook,
                pool=self._pool,
                busy=lambda: reconciler.busy,
                pacer=Pacer(bytes_per_s=self.config.scrub_bytes_per_s),
                retry_limit_s=self.config.retry_limit_s,
                clock=self._fleet.clock,
                checked_at=opening if self.config.verify_on_open else -math.inf,
                on_doubt=self._on_doubt,
            )
        await self._fleet.wake()

    def _open_mirror(self, threads: int) -> Mirror:
        root = self.config.root
        with writing(root, "the island's directory"):
            if self.config.in_memory:
                own_directory(root)
            mirror = Mirror.open(
                root,
                verify=self.config.verify_on_open,
                hook=self._pass_on,
                threads=threads,
                selection=self.config.selection,
            )
            remove(Places(root).comparing)  # of a process that was killed while it compared
            return mirror

    def _open_groups(self) -> Groups | None:
        if self._membership is None:
            return None
        groups = Groups(
            self._membership,
            self.config.island,
            fleet=self._fleet,
            root=self.config.root,
            hook=self._hook,
            nudge=self._hasten,
        )
        self._fleet.bound.update(groups.bound)
        self.state.groups = groups.shown
        return groups

    def _demand(self, fetcher: Fetcher) -> Demand | None:
        if self.config.selection is None:
            return None

        def total(nbytes: int) -> None:
            self.state.bytes_total = nbytes

        return Demand(self.config.selection, self.reader, fetcher, total)

    def _part(self) -> Part | None:
        return None if self._mirror is None else self._mirror.part

    def _pass_on(self, step: str) -> None:
        """The mirror's hook: it marks time once there is a reconciler."""
        if self._reconciler is None:
            self._hook(step)
        else:
            self._reconciler.mark(step)

    @property
    def target(self) -> Target:
        return self._target

    def meaning(self, target: Target) -> int | None:
        """Return the version that a target means today.

        Raises TargetRefused, LogBehind or RunMismatch.
        """
        return plan.choose(self.reader.state, target, self.state.held)

    def aim(self, target: Target) -> None:
        """Follow another target from now on."""
        self._target = self.state.target = target
        if self._reconciler is not None:
            self._reconciler.target = target
        self._hasten()

    def _hasten(self) -> None:
        """Have the next pass begin at once, even after an error: its operator says so."""
        self._hastened.set()
        self._nudged.set()

    def _within(self, version: int) -> bool:
        return plan.within(self.reader.state, self._target, version)

    def nudge(self) -> None:
        """Look at the log soon: somebody needs a newer version, or has heard of one.

        From any thread, as often as one likes.
        """
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody will look any more
                self._loop.call_soon_threadsafe(self._nudged.set)

    @property
    def is_watched(self) -> bool:
        """Whether a relay has said that it will tell of new records."""
        return self.state.watched

    def watched(self, by_a_relay: bool) -> None:
        """Say whether somebody will nudge when there is a record: then looks may be rare."""
        if self.state.watched and not by_a_relay:
            self.nudge()
        self.state.watched = by_a_relay

    async def step(self) -> bool:
        """Make one pass of the reconcile loop; raises what it met.  Says whether anything moved."""
        if self._reconciler is None:
            raise RuntimeError("the agent is not open")
        return await self._reconciler.step()

    async def run(self) -> None:
        """Reconcile until `stop`.  Errors are recorded in the status and the loop goes on."""
        announcer = None
        if self.config.announce:
            announcer = Announcer(
                self.reader.store,
                self.state,
                interval_s=self.config.announce_s,
                heartbeat_s=self.config.heartbeat_s,
            )
            announcer.start()
        scrubbing = None
        if self._scrubber is not None:
            scrubbing = asyncio.create_task(
                self._scrubber.run(self.config.poll_s, self.config.scrub_pass_s)
            )
        driving = None
        if self._groups is not None:
            driving = asyncio.create_task(self._groups.run())
        try:
            await self._reconcile()
        finally:
            beside = {task for task in (scrubbing, driving) if task is not None}
            for task in beside:
                task.cancel()
            if beside:
                await asyncio.wait(beside)
            if self._groups is not None:
                await self._groups.close()
        self.state.phase = "stopped"
        if announcer is not None:
            await asyncio.to_thread(announcer.stop)

    async def _reconcile(self) -> None:
        retry_s, poll_s = self.config.retry_s, self.config.poll_s
        while not self._stopping.is_set():
            self._nudged.clear()  # what comes from here on may be about a later record
            self._hastened.clear()
            try:
                moved = await self.step()
            except Stopped:
                break
            except Exception as error:  # the boundary of the reconcile loop
                self.state.fail(error, self.state.phase)
                logger.warning("pass failed phase=%s error=%r", self.state.phase, error)
                self.state.phase = "retrying"
                self._passed()
                if isinstance(error, _DOUBTFUL):
                    self._on_doubt()
                await _within(retry_s, self._hastened)
                retry_s = min(2 * retry_s, self.config.retry_limit_s)
                continue
            self._passed()
            retry_s = self.config.retry_s
            if moved:
                poll_s = self.config.poll_s
                continue
            await self._rest(min(self.config.eager_s, poll_s) if self._is_awaited() else poll_s)
            eager = self._nudged.is_set() or self._is_awaited()
            limit_s = self.config.watched_poll_s if self.state.watched else self.config.idle_poll_s
            poll_s = self.config.poll_s if eager else min(1.5 * poll_s, limit_s)

    def _is_awaited(self) -> bool:
        """Whether somebody waits for a version: a request, or a group."""
        hungry = self._groups is not None and self._groups.hungry
        return self.gate.waiting > 0 or hungry

    def _passed(self) -> None:
        self.state.passes += 1
        self.state.last_pass_unix_s = self.state.clock()

    def stop(self) -> None:
        """Ask `run` to end soon: downloads and decoding stop, an install in place is finished."""
        self._halt.set()
        self._stopping.set()
        if self._groups is not None:
            self._groups.stop()
        self.state.stopping = True
        self._hasten()

    @property
    def only_reads(self) -> bool:
        """Whether the work under way touches neither mirror nor engines: nobody need wait for it.

        A read from a store that never answers cannot be ended from here.
        """
        return self.state.phase not in ("staging", "installing", "grouping")

    async def close(self, limit_s: float | None = None) -> bool:
        """Wait for work under way, leave engines running, let go of the mirror.  Idempotent.

        Returns whether the work had ended after `limit_s`.  If not, it goes on in its thread and
        the mirror stays locked: the process has to end, which a mirror survives at any moment.
        """
        self.stop()
        ended = True
        if not self._closed:
            loop = asyncio.get_running_loop()
            waits = {loop.run_in_executor(self._pool, _nothing)}
            if self._scrubber is not None:
                waits.add(self._scrubber.stop())
            ended = not (await asyncio.wait(waits, timeout=limit_s))[1]
        await self._fleet.wake()
        if not ended:
            return False
        self._closed = True
        self._pool.shutdown()
        if self._scrubber is not None:
            self._scrubber.close()
            self._scrubber = None
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = self._reconciler = None
        return True

    @property
    def paused(self) -> tuple[str, ...]:
        """The engines that could not be resumed."""
        return tuple(sorted(self._fleet.asleep))

    async def _rest(self, delay_s: float) -> None:
        """Wait for the next look: a nudge makes it sooner, but no sooner than `nudge_s`."""
        await _within(min(delay_s, self.config.nudge_s), self._hastened)
        await _within(delay_s - self.config.nudge_s, self._nudged)


async def _within(delay_s: float, event: asyncio.Event) -> None:
    """Wait for `event`, at most for `delay_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await event.wait()


def _nothing() -> None:
    """Tell by being done that the thread has done all before."""
