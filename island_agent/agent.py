"""One island: it follows a run's log, keeps the mirror, and switches its engines.

The agent needs neither torch nor an HTTP stack; `service` puts one around it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from skerry.bulletin.errors import RecordInvalid, Tampered
from skerry.bulletin.reader import BulletinReader
from skerry.codec.errors import CodecError
from skerry.inference.engine import Engine
from skerry.inference.gate import AdmissionGate
from skerry.island_agent.announce import Announcer
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import LogBehind, ObjectCorrupt, Stopped
from skerry.island_agent.fetch import Fetcher
from skerry.island_agent.fleet import Fleet
from skerry.island_agent.hooks import Hook, no_hook
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.plan import Target
from skerry.island_agent.reconcile import OnRecords, Reconciler
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
        hook: Hook = no_hook,
        on_records: OnRecords = lambda state, records: None,
        on_doubt: Callable[[], None] = lambda: None,
    ) -> None:
        """`gate`, made for the same engines, is the one that requests go through.

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
        )
        self._hook = hook
        self._on_records = on_records
        self._on_doubt = on_doubt
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudged = asyncio.Event()
        self._watched = False
        self.gate.on_wait(self.nudge)
        self._target = config.target
        self._halt = threading.Event()
        self._stopping = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="skerry-mirror")
        self._mirror: Mirror | None = None
        self._reconciler: Reconciler | None = None

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
        """Lock and recover the mirror, resume engines.  Raises MirrorBusy."""
        loop = self._loop = asyncio.get_running_loop()
        fetcher = Fetcher(
            self.reader.store,
            Places(self.config.directory).spool,
            self.config.fetch,
            stop=self._halt,
        )
        self.state.progress = fetcher.progress
        self._mirror = await loop.run_in_executor(self._pool, self._open_mirror)
        self._reconciler = Reconciler(
            reader=self.reader,
            mirror=self._mirror,
            fetcher=fetcher,
            fleet=self._fleet,
            target=self._target,
            status=self.state,
            hook=self._hook,
            pool=self._pool,
            on_records=self._on_records,
        )
        self.state.held, self.state.damage = self._mirror.held, self._mirror.damage
        self.state.run = self._mirror.run
        logger.info("island opened island=%s version=%s", self.config.island, self.state.version)
        await self._fleet.wake()

    def _open_mirror(self) -> Mirror:
        return Mirror.open(
            self.config.directory,
            verify=self.config.verify_on_open,
            hook=self._pass_on,
            threads=self.config.threads,
        )

    def _pass_on(self, step: str) -> None:
        """The mirror's hook: it marks time once there is a reconciler."""
        if self._reconciler is None:
            self._hook(step)
        else:
            self._reconciler.mark(step)

    def aim(self, target: Target) -> None:
        """Follow another target from the next pass on."""
        self._target = target
        if self._reconciler is not None:
            self._reconciler.target = target

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
        return self._watched

    def watched(self, by_a_relay: bool) -> None:
        """Say whether somebody will nudge when there is a record: then looks may be rare."""
        if self._watched and not by_a_relay:
            self.nudge()
        self._watched = by_a_relay

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
        await self._reconcile()
        self.state.phase = "stopped"
        if announcer is not None:
            await asyncio.to_thread(announcer.stop)

    async def _reconcile(self) -> None:
        retry_s, poll_s = self.config.retry_s, self.config.poll_s
        while not self._stopping.is_set():
            self._nudged.clear()  # what comes from here on may be about a later record
            try:
                moved = await self.step()
            except Stopped:
                break
            except Exception as error:  # the boundary of the reconcile loop
                self.state.fail(error, self.state.phase)
                logger.warning("pass failed phase=%s error=%r", self.state.phase, error)
                self.state.phase = "retrying"
                if isinstance(error, _DOUBTFUL):
                    self._on_doubt()
                await self._sleep(retry_s)
                retry_s = min(2 * retry_s, self.config.retry_limit_s)
                continue
            retry_s = self.config.retry_s
            if moved:
                poll_s = self.config.poll_s
                continue
            await self._rest(poll_s)
            eager = self._nudged.is_set() or self.gate.waiting > 0
            limit_s = self.config.watched_poll_s if self._watched else self.config.idle_poll_s
            poll_s = self.config.poll_s if eager else min(1.5 * poll_s, limit_s)

    def stop(self) -> None:
        """Ask `run` to end soon: downloads and decoding stop, an install in place is finished."""
        self._halt.set()
        self._stopping.set()
        self._nudged.set()

    async def close(self) -> None:
        """Wait for work under way, leave engines running, let go of the mirror.  Idempotent."""
        self.stop()
        await asyncio.to_thread(self._pool.shutdown)
        await self._fleet.wake()
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = self._reconciler = None

    async def _rest(self, delay_s: float) -> None:
        """Wait for the next look: a nudge makes it sooner, but no sooner than `nudge_s`."""
        await self._sleep(min(delay_s, self.config.nudge_s))
        await _within(delay_s - self.config.nudge_s, self._nudged)

    async def _sleep(self, delay_s: float) -> None:
        await _within(delay_s, self._stopping)


async def _within(delay_s: float, event: asyncio.Event) -> None:
    """Wait for `event`, at most for `delay_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await event.wait()
