"""Requests, swaps and failures in every order, against a model that knows the true weights.

The model is a dict: the version that each engine's weights really are.  Whatever the order, no
request runs on weights that it does not accept, no swap starves, and nobody who could run waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.inference.accepted import AcceptedVersions, VersionRange
from skerry.inference.config import GateConfig
from skerry.inference.decision import KnownVersions, Unavailable, Wait, decide
from skerry.inference.engine import EngineBroken, EngineError, InstallFailed
from skerry.inference.errors import RequestRevoked, WeightVersionError
from skerry.inference.gate import AdmissionGate
from skerry.inference.slot import Ticket
from tests.inference.stand_in import StandInEngine

ENGINES = ("a", "b")
FOREVER_S = 3600.0
Command = tuple[object, ...]


@st.composite
def accepted_sets(draw: st.DrawFn) -> AcceptedVersions:
    start = draw(st.integers(0, 5))
    end = draw(st.none() | st.integers(start, min(start + 2, 6)))
    return AcceptedVersions(
        ranges=(VersionRange(start, end),), prefer=draw(st.sampled_from(["newest", "oldest"]))
    )


commands: st.SearchStrategy[Command] = st.one_of(
    st.tuples(st.just("admit"), accepted_sets(), st.sampled_from([0.0, FOREVER_S])),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(
        st.just("swap"),
        st.sampled_from(ENGINES),
        st.integers(0, 6),
        st.sampled_from(["ok", "ok", "ok", "failed", "broken", "unknown"]),
        st.sampled_from([None, None, 0.0]),
    ),
    st.tuples(st.just("reload"), st.sampled_from(ENGINES), st.integers(0, 6)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("tell"), st.integers(0, 6), st.integers(0, 6)),
    st.tuples(st.just("probe"), st.sampled_from(ENGINES), st.booleans()),
    st.tuples(st.just("yield"), st.integers(1, 4)),
)


@dataclass
class Holder:
    accepted: AcceptedVersions
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    ticket: Ticket | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False


class World:
    """The gate, what is true about its engines, and everybody who ever came."""

    def __init__(self) -> None:
        self.engines = {name: StandInEngine() for name in ENGINES}
        self.gate = AdmissionGate(self.engines, config=GateConfig(resume_backoff_s=0.0))
        self.weights: dict[str, int | None] = {"a": 2, "b": 3}
        self.holders: list[Holder] = []
        self.swaps: list[asyncio.Task[None]] = []
        self.withdrawn = dict.fromkeys(ENGINES, 0)  # how often each was said to serve nothing
        for name, version in self.weights.items():
            self.gate.set_served(name, version)
        self.gate.tell(KnownVersions(newest=3))

    def check(self) -> None:
        for holder in self.holders:
            if holder.ticket is not None and holder.ticket.revoked is None:
                weights = self.weights[holder.ticket.engine]
                assert weights is not None, "runs on unknown weights"
                assert holder.accepted.contains(weights), f"{weights} for {holder.accepted}"
        for name, view in self.gate.view().items():
            assert view.version in (None, self.weights[name]), "advertises what it is not"

    async def hold(self, holder: Holder, wait_s: float) -> None:
        try:
            async with self.gate.admit(holder.accepted, wait_s) as ticket:
                holder.ticket = ticket
                self.check()
                try:
                    await holder.finish.wait()
                finally:
                    holder.ticket = None
        except (WeightVersionError, RequestRevoked):
            pass

    async def swap(self, name: str, version: int, fault: str, drain_s: float | None) -> None:
        async def install() -> None:
            assert self.engines[name].paused
            self.check()
            before, self.weights[name] = self.weights[name], None
            for holder in self.holders:  # nobody who is excluded is left
                if holder.ticket is not None and holder.ticket.engine == name:
                    assert holder.accepted.contains(version)
            if fault == "failed":
                self.weights[name] = before
                raise InstallFailed("as told")
            if fault == "broken":
                raise EngineBroken("as told")
            if fault == "unknown":
                raise EngineError("as told")
            self.weights[name] = version

        before = self.withdrawn[name]
        try:
            await self.gate.swap(name, version, install, drain_s=drain_s)
        except EngineError:
            assert fault != "ok" or self.withdrawn[name] > before
        assert not self.engines[name].paused
        self.check()

    async def reload(self, name: str, version: int) -> None:
        async def load() -> None:
            assert not any(h.ticket is not None and h.ticket.engine == name for h in self.holders)
            self.weights[name] = version

        before = self.withdrawn[name]
        try:
            await self.gate.reload(name, version, load)
        except EngineBroken:
            assert self.withdrawn[name] > before

    def do(self, command: Command) -> int:
        """Carry out one command; return how often the loop turns before the next."""
        match command:
            case ("admit", AcceptedVersions() as accepted, float() as wait_s):
                holder = Holder(accepted)
                holder.task = asyncio.create_task(self.hold(holder, wait_s))
                self.holders.append(holder)
            case ("finish", int() as n) if self.holders:
                self.holders[n % len(self.holders)].finish.set()
            case ("cancel", int() as n) if self.holders:
                holder = self.holders[n % len(self.holders)]
                assert holder.task is not None
                holder.cancelled = holder.task.cancel() or holder.cancelled
            case ("swap", str() as name, int() as version, str() as fault, drain_s):
                assert drain_s is None or isinstance(drain_s, float)
                self.start(self.swap(name, version, fault, drain_s))
            case ("reload", str() as name, int() as version):
                self.start(self.reload(name, version))
            case ("tell", int() as newest, int() as oldest):
                self.gate.tell(KnownVersions(newest=newest, oldest=min(oldest, newest)))
            case ("probe", str() as name, bool() as healthy):
                if not healthy or self.gate.view()[name].target is None:
                    self.gate.set_served(name, self.weights[name] if healthy else None)
                    self.withdrawn[name] += not healthy
            case ("yield", int() as turns):
                return turns
        return 0

    def start(self, work: Awaitable[None]) -> None:
        self.swaps.append(asyncio.ensure_future(work))

    async def run(self, todo: list[Command]) -> None:
        for command in todo:
            for _ in range(self.do(command)):
                await asyncio.sleep(0)
            self.check()
        await self.end()

    async def end(self) -> None:
        """Let everybody who runs finish: then every swap ends, and who still waits, must."""
        await self.until(lambda: all(swap.done() for swap in self.swaps), finishing=True)
        for swap in self.swaps:
            swap.result()
        await self.until(lambda: not self.running(), finishing=True)
        self.check()
        for holder in self.holders:
            assert holder.task is not None
            if not holder.task.done():
                state = self.gate.view(), self.gate.known
                assert isinstance(decide(holder.accepted, *state), Wait | Unavailable)
                holder.task.cancel()
        await asyncio.gather(*(h.task for h in self.holders if h.task), return_exceptions=True)
        for holder in self.holders:
            assert holder.task is not None
            if not holder.task.cancelled():
                holder.task.result()
        assert self.gate.waiting == 0
        assert all(view.running == 0 for view in self.gate.view().values())
        assert all(view.target is None for view in self.gate.view().values())

    def running(self) -> list[Holder]:
        return [holder for holder in self.holders if holder.ticket is not None]

    async def until(self, holds: Callable[[], bool], *, finishing: bool) -> None:
        for _ in range(2000):
            if finishing:
                for holder in self.running():
                    holder.finish.set()
            await asyncio.sleep(0)
            if holds() and not self.running():
                return
        raise AssertionError("deadlock: nothing moves any more")


@given(st.lists(commands, max_size=30))
@settings(max_examples=150, deadline=None)
def test_no_order_of_events_breaks_a_promise(todo: list[Command]) -> None:
    async def body() -> None:
        await World().run(todo)

    asyncio.run(body())


def test_a_stream_of_pinned_requests_cannot_starve_a_swap() -> None:
    async def body() -> None:
        world = World()
        pinned = AcceptedVersions(ranges=(VersionRange(2, 2),))
        todo: list[Command] = [("admit", pinned, FOREVER_S), ("yield", 3)]
        todo += [("swap", "a", 5, "ok", None), ("yield", 3)]
        for command in todo:
            for _ in range(world.do(command)):
                await asyncio.sleep(0)
        first = world.holders[0]
        assert first.ticket is not None
        for _ in range(50):
            world.do(("admit", pinned, FOREVER_S))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert world.running() == [first]
        first.finish.set()
        await world.swaps[0]
        assert world.gate.view()["a"].version == 5
        await world.end()

    asyncio.run(body())
