"""The admission gate: requests enter by version, engines change version behind it.

Law: no token reaches a request from a version that the request does not accept.

Everything runs on one event loop, and between a decision and the change it makes there is no await:
that is what makes check and dispatch atomic with a swap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from skerry.inference.accepted import AcceptedVersions, VersionRange
from skerry.inference.config import GateConfig
from skerry.inference.decision import (
    EngineView,
    Forward,
    Gone,
    KnownVersions,
    Unavailable,
    Wait,
    decide,
)
from skerry.inference.engine import Engine
from skerry.inference.errors import (
    EngineUnavailable,
    RequestRevoked,
    WeightVersionError,
    WeightVersionGone,
    WeightVersionNotReady,
)
from skerry.inference.slot import Changes, Slot, Ticket
from skerry.inference.swap import Install, Swap, SwapReport


class AdmissionGate:
    """Admits requests to `engines` and swaps their versions.  Only the agent tells it anything.

    Engines serve nothing until `set_served` or `reload` says so.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        config: GateConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changes = Changes()
        self._slots = {
            name: Slot(name=name, engine=engine, changes=self._changes)
            for name, engine in engines.items()
        }
        self._config = config or GateConfig()
        self._clock = clock
        self._known = KnownVersions()
        self._waiting = 0
        self._listeners: list[Callable[[SwapReport], None]] = []
        self._wanted: list[Callable[[], None]] = []

    @property
    def known(self) -> KnownVersions:
        return self._known

    @property
    def waiting(self) -> int:
        """How many requests wait for a version."""
        return self._waiting

    def view(self) -> dict[str, EngineView]:
        """Return what each engine serves, and its last error."""
        return {name: slot.view() for name, slot in self._slots.items()}

    def served(self) -> list[int]:
        """Return the versions that are served, ascending."""
        return sorted({s.version for s in self._slots.values() if s.version is not None})

    def on_swap(self, listener: Callable[[SwapReport], None]) -> None:
        """Call `listener` after every swap and reload, also after one that failed."""
        self._listeners.append(listener)

    def on_wait(self, listener: Callable[[], None]) -> None:
        """Call `listener` once for each request that only a later version can serve."""
        self._wanted.append(listener)

    def tell(self, known: KnownVersions) -> None:
        """Take over what the bulletin says now."""
        self._known = known
        self._changes.wake()

    def set_served(
        self, name: str, version: int | None, *, error: str | None = None, revoke: bool = False
    ) -> None:
        """State what an engine serves; None is nothing, for an engine that is not healthy.

        Running requests that do not accept `version` are revoked; with None they go on, unless
        `revoke` says that its weights are known to be wrong.  None during a swap holds for what it
        ends at as well; for a version, which the swap will state, ValueError is raised.
        """
        slot = self._slots[name]
        if slot.swapping.locked() and version is not None:
            raise ValueError(f"engine {name} is being swapped, cannot be said to serve {version}")
        if version is None:
            slot.withdrawn = error or "it is said to serve nothing"
        slot.error = error
        slot.label(version)
        if version is not None:
            slot.revoke(version, f"the engine now serves {version}")
        elif revoke:
            slot.revoke(None, error or "the engine's weights are wrong")

    @asynccontextmanager
    async def admit(
        self,
        accepted: AcceptedVersions,
        wait_s: float = 0.0,
        *,
        pinned: bool = False,
        among: Collection[str] | None = None,
    ) -> AsyncIterator[Ticket]:
        """Hold a ticket while the body runs; the holder is the task that enters.

        A pinned request accepts, once it is in, only the version that it entered at: a swap waits
        for it, and it waits for a swap, for `held_s` at least.  `among` names the engines that can
        run it (None: all).

        Raises WeightVersionGone, and after `wait_s` WeightVersionNotReady or EngineUnavailable.  A
        holder whose ticket is revoked is cancelled, and its body then raises RequestRevoked.
        """
        ticket = await self._ticket(accepted, wait_s, pinned, among)
        try:
            yield ticket
        except asyncio.CancelledError:
            if ticket.revoked is None or ticket.holder.uncancel() > ticket.cancels:
                raise
            raise RequestRevoked(engine=ticket.engine, reason=ticket.revoked) from None
        finally:
            self._slots[ticket.engine].release(ticket)

    async def swap(
        self,
        name: str,
        version: int,
        install: Install,
        *,
        drain_s: float | None = None,
        ready: Install | None = None,
    ) -> SwapReport:
        """Bring an engine to `version` by `install`, which runs while the engine is paused.

        Running requests that do not accept `version` end first, and no new ones enter meanwhile;
        after `drain_s` (None: never) the rest is revoked.  Then `ready` may take its time, or call
        the swap off by InstallFailed, while the engine still serves.  Raises InstallFailed (the old
        label stays), EngineBroken or StillPaused (the engine serves nothing until `reload`).
        """
        return await self._change(name, version, install, whole=False, drain_s=drain_s, ready=ready)

    async def reload(
        self, name: str, version: int, load: Install, *, drain_s: float | None = None
    ) -> SwapReport:
        """Bring an engine to `version` by `load`, which reads a whole checkpoint.

        The engine serves nothing until `load` has returned, and all its requests end first.  Raises
        EngineBroken (it still serves nothing) and StillPaused.
        """
        return await self._change(name, version, load, whole=True, drain_s=drain_s)

    async def _change(
        self,
        name: str,
        version: int,
        install: Install,
        *,
        whole: bool,
        drain_s: float | None,
        ready: Install | None = None,
    ) -> SwapReport:
        slot = self._slots[name]
        async with slot.swapping:
            swap = Swap(
                slot=slot,
                version=version,
                install=install,
                whole=whole,
                drain_s=drain_s,
                ready=ready,
                config=self._config,
                clock=self._clock,
                on_end=self._report,
            )
            slot.target = version
            try:
                return await swap.run()
            finally:
                slot.target = None
                self._changes.wake()

    def _report(self, report: SwapReport) -> None:
        for listener in self._listeners:
            listener(report)

    async def _ticket(
        self,
        accepted: AcceptedVersions,
        wait_s: float,
        pinned: bool,
        among: Collection[str] | None,
    ) -> Ticket:
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        held_s = self._config.held_s
        if self._waiting >= self._config.max_waiting:
            wait_s = held_s = 0.0  # the answer says when to come back
        self._waiting += 1
        told = False
        try:
            while True:
                views = {n: e for n, e in self.view().items() if among is None or n in among}
                decision = decide(accepted, views, self._known, pinned=pinned)
                if isinstance(decision, Wait) and not told:
                    told = True
                    for listener in self._wanted:
                        listener()
                if isinstance(decision, Forward):
                    kept = _only(decision.version) if pinned else accepted
                    return self._issue(decision, kept, loop.time() - arrived)
                limit_s = wait_s
                if any(e.takes(accepted) for e in views.values()):  # only a swap is in its way
                    limit_s = max(wait_s, held_s)
                left_s = arrived + limit_s - loop.time()
                if isinstance(decision, Gone):
                    raise self._refusal(WeightVersionGone, f"no version of {accepted} will come")
                if left_s <= 0 and isinstance(decision, Unavailable):
                    raise self._refusal(EngineUnavailable, "no engine serves any version")
                if left_s <= 0:
                    raise self._refusal(
                        WeightVersionNotReady, f"no version of {accepted} can be entered yet"
                    )
                await self._changes.wait(left_s)
        finally:
            self._waiting -= 1

    def _issue(self, to: Forward, accepted: AcceptedVersions, waited_s: float) -> Ticket:
        holder = asyncio.current_task()
        assert holder is not None  # a coroutine that is awaited runs in a task
        ticket = Ticket(
            engine=to.engine,
            version=to.version,
            accepted=accepted,
            waited_s=waited_s,
            holder=holder,
            cancels=holder.cancelling(),
        )
        self._slots[to.engine].tickets.add(ticket)
        return ticket

    def _refusal(self, kind: type[WeightVersionError], what: str) -> WeightVersionError:
        served, newest = self.served(), self._known.newest
        shown = ",".join(map(str, served)) or "none"
        message = f"{what}: served {shown}, newest {newest}, oldest kept {self._known.oldest}"
        return kind(message, served=served, newest=newest)


def _only(version: int) -> AcceptedVersions:
    return AcceptedVersions(ranges=(VersionRange(version, version),))
