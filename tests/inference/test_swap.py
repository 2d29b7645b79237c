"""Swaps on the stand-in engine: what is advertised, what tokens say, who stays paused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from skerry.inference.accepted import ANY, AcceptedVersions
from skerry.inference.attribution import spans_of
from skerry.inference.config import GateConfig
from skerry.inference.constraint import parse_header
from skerry.inference.decision import KnownVersions
from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
)
from skerry.inference.errors import (
    EngineUnavailable,
    RequestRevoked,
    StillPaused,
    WeightVersionGone,
    WeightVersionNotReady,
)
from skerry.inference.gate import AdmissionGate
from skerry.inference.swap import Outcome, SwapReport
from tests.inference.stand_in import Checkpoints, Fault, StandInEngine, token_of

FOREVER_S = 3600.0


class Island:
    """One stand-in engine at version 5 behind a gate, and what an agent does with them."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.engine = StandInEngine()
        self.now_s = 0.0
        config = GateConfig(resume_tries=3, resume_backoff_s=0.0)
        self.gate = AdmissionGate({"engine": self.engine}, config=config, clock=lambda: self.now_s)
        self.reports: list[SwapReport] = []
        self.gate.on_swap(self.reports.append)

    def label(self) -> int | None:
        return self.gate.view()["engine"].version

    def error(self) -> str | None:
        return self.gate.view()["engine"].error

    async def load(self, version: int) -> None:
        path = self.checkpoints.path(version)
        await self.gate.reload("engine", version, lambda: self.engine.load(path, version))
        self.gate.tell(KnownVersions(newest=version))

    async def swap(self, version: int, *, drain_s: float | None = None) -> SwapReport:
        assert self.engine.version is not None
        update = self.checkpoints.update(self.engine.version, version)
        await self.engine.stage(update)
        return await self.gate.swap(
            "engine", version, lambda: self.engine.install(update), drain_s=drain_s
        )

    async def generate(
        self, accepted: AcceptedVersions, max_tokens: int, into: list[GeneratedToken]
    ) -> None:
        request = GenerationRequest(prompt=(1,), max_tokens=max_tokens)
        async with self.gate.admit(accepted):
            async for token in self.engine.generate(request):
                into.append(token)  # noqa: PERF401  tests read it while it grows

    def check_labels(self, tokens: list[GeneratedToken]) -> None:
        """Prove each label by what only weights of that version would have made."""
        for position, token in enumerate(tokens):
            assert token.token == token_of(self.checkpoints.digest(token.version), position)


def on_island(
    tmp_path: Path, body: Callable[[Island], Awaitable[None]], *, version: int = 5
) -> None:
    async def main() -> None:
        island = Island(Checkpoints(tmp_path))
        await island.load(version)
        await body(island)
        assert not island.engine.paused

    asyncio.run(main())


def accepts(text: str) -> AcceptedVersions:
    return parse_header(text).resolve(None)


ANYTHING = ANY.resolve(None)


async def turns(n: int = 8) -> None:
    """Let every task run until it waits for something."""
    for _ in range(n):
        await asyncio.sleep(0)


def test_j1_every_token_is_labelled_with_the_weights_that_made_it(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        island.engine.pace()
        tokens: list[GeneratedToken] = []
        running = asyncio.create_task(island.generate(ANYTHING, 6, tokens))
        island.engine.permit(3)
        while len(tokens) < 3:
            await asyncio.sleep(0)
        report = await island.swap(6)
        assert (report.outcome, report.base, report.version) == ("installed", 5, 6)
        island.engine.permit(3)
        await running
        assert [t.version for t in tokens] == [5, 5, 5, 6, 6, 6]
        island.check_labels(tokens)
        assert [s.to_json() for s in spans_of(t.version for t in tokens)] == [
            {"version": "5", "start": 0, "end": 3},
            {"version": "6", "start": 3, "end": 6},
        ]

    on_island(tmp_path, body)


def test_a_swap_that_is_made_ready_serves_on_until_it_is_and_can_be_called_off(
    tmp_path: Path,
) -> None:
    async def body(island: Island) -> None:
        update = island.checkpoints.update(5, 6)
        for calls_off in (True, False):
            await island.engine.stage(update)
            reached, go = asyncio.Event(), asyncio.Event()

            async def ready(
                reached: asyncio.Event = reached,
                go: asyncio.Event = go,
                calls_off: bool = calls_off,
            ) -> None:
                reached.set()
                await go.wait()
                if calls_off:
                    raise InstallFailed("somebody else could not follow")

            swap = asyncio.create_task(
                island.gate.swap("engine", 6, lambda: island.engine.install(update), ready=ready)
            )
            await reached.wait()
            made: list[GeneratedToken] = []
            await island.generate(ANYTHING, 2, made)  # it is not paused yet
            assert {token.version for token in made} == {5}
            with pytest.raises(WeightVersionNotReady):
                await island.generate(accepts("5"), 1, made)
            go.set()
            if calls_off:
                with pytest.raises(InstallFailed):
                    await swap
                assert (island.label(), island.engine.version) == (5, 5)
        assert (await swap).outcome == "installed"
        assert (island.label(), island.engine.version) == (6, 6)

    on_island(tmp_path, body)


def test_a_pinned_request_ends_before_the_swap_and_no_new_one_enters(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        island.engine.pace()
        tokens: list[GeneratedToken] = []
        pinned = asyncio.create_task(island.generate(accepts("5"), 4, tokens))
        island.engine.permit(1)
        await turns()
        swapping = asyncio.create_task(island.swap(6))
        await turns()
        assert "pause" not in island.engine.calls
        with pytest.raises(WeightVersionNotReady):  # whether 5 is gone is not known yet
            await island.generate(accepts("5"), 1, [])
        straddling: list[GeneratedToken] = []
        open_ended = asyncio.create_task(island.generate(accepts("5.."), 2, straddling))
        await turns()
        assert island.gate.view()["engine"].running == 2
        island.engine.permit(6)
        await asyncio.gather(pinned, open_ended)
        await swapping
        assert [t.version for t in tokens] == [5, 5, 5, 5]
        with pytest.raises(WeightVersionGone):
            await island.generate(accepts("5"), 1, [])

    on_island(tmp_path, body)


def test_who_waits_for_the_new_version_enters_with_it(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        async def wait_for(text: str) -> int:
            async with island.gate.admit(accepts(text), FOREVER_S) as ticket:
                return ticket.version

        waiting = [asyncio.create_task(wait_for(text)) for text in ("6", "6..8", "4,7")]
        await turns()
        assert island.gate.waiting == 3
        await island.swap(6)
        assert await asyncio.gather(*waiting[:2]) == [6, 6]
        await island.swap(8)
        with pytest.raises(WeightVersionGone) as gone:
            await waiting[2]
        assert (gone.value.served, gone.value.newest) == ((8,), 5)

    on_island(tmp_path, body)


@pytest.mark.parametrize("fault", ["before", "half", "label-first"])
def test_j2_a_failed_install_keeps_the_label_and_the_weights(tmp_path: Path, fault: Fault) -> None:
    async def body(island: Island) -> None:
        island.engine.fault = fault
        island.engine.install_may_go_on.clear()
        swapping = asyncio.create_task(island.swap(6))
        await island.engine.install_began.wait()
        assert island.label() == 5  # also while the engine itself already says otherwise
        island.engine.install_may_go_on.set()
        with pytest.raises(InstallFailed, match="rank"):
            await swapping
        assert island.label() == 5
        assert island.error() is not None
        assert await island.engine.weights_digest() == island.checkpoints.digest(5)
        tokens: list[GeneratedToken] = []
        await island.generate(accepts("5"), 3, tokens)
        island.check_labels(tokens)
        await island.swap(6)  # the same update, again
        assert (island.label(), island.error()) == (6, None)
        assert [r.outcome for r in island.reports] == ["installed", "failed", "installed"]

    on_island(tmp_path, body)


def test_i4_a_half_switched_engine_serves_nothing_until_it_is_loaded(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        island.engine.pace()
        tokens: list[GeneratedToken] = []
        running = asyncio.create_task(island.generate(ANYTHING, 9, tokens))
        island.engine.permit(2)
        while len(tokens) < 2:
            await asyncio.sleep(0)
        island.engine.permit(7)  # taken only after the pause: none of them may be made
        island.engine.paused = True
        island.engine.fault = "half-broken"
        with pytest.raises(EngineBroken):
            await island.swap(6)
        with pytest.raises(RequestRevoked, match="unknown"):
            await running
        assert [t.version for t in tokens] == [5, 5]
        island.check_labels(tokens)
        assert island.label() is None
        assert island.error() == "rank 1 failed, rank 0 cannot go back"
        for text in ("5", "6", "5.."):
            with pytest.raises(EngineUnavailable):
                await island.generate(accepts(text), 1, [])
        await island.load(6)
        assert (island.label(), island.error()) == (6, None)
        assert await island.engine.weights_digest() == island.checkpoints.digest(6)

    on_island(tmp_path, body)


def test_i4_another_engine_takes_over_while_one_is_broken(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        other = StandInEngine()
        gate = AdmissionGate({"engine": island.engine, "other": other})
        gate.set_served("engine", 5)
        gate.set_served("other", 5)

        async def breaks() -> None:
            raise EngineBroken("rank 1 failed")

        with pytest.raises(EngineBroken):
            await gate.swap("engine", 6, breaks)
        view = gate.view()
        assert (view["engine"].version, view["engine"].error) == (None, "rank 1 failed")
        assert (view["other"].version, view["other"].error) == (5, None)
        async with gate.admit(accepts("5")) as ticket:
            assert ticket.engine == "other"

    on_island(tmp_path, body)


@pytest.mark.parametrize(
    ("error", "outcome", "label"),
    [
        (InstallFailed("told"), "failed", 5),
        (EngineBroken("told"), "broken", None),
        (EngineError("told"), "broken", None),
        (RuntimeError("told"), "broken", None),
    ],
)
def test_i2_the_engine_is_resumed_whatever_the_install_met(
    tmp_path: Path, error: Exception, outcome: Outcome, label: int | None
) -> None:
    async def body(island: Island) -> None:
        async def install() -> None:
            assert island.engine.paused
            raise error

        with pytest.raises(type(error), match="told"):
            await island.gate.swap("engine", 6, install)
        assert island.engine.calls[-2:] == ["pause", "resume"]
        assert (island.label(), island.reports[-1].outcome) == (label, outcome)

    on_island(tmp_path, body)


def test_i2_a_swap_that_is_cancelled_inside_the_pause_resumes(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        island.engine.install_may_go_on.clear()
        swapping = asyncio.create_task(island.swap(6))
        await island.engine.install_began.wait()
        swapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await swapping
        assert not island.engine.paused
        assert island.label() is None  # what the cut-off install left behind is not known
        assert island.error() == "the swap to 6 was cut off"

    on_island(tmp_path, body)


@pytest.mark.parametrize("failing", [0, 3])
def test_i2_a_swap_that_is_cancelled_again_and_again_while_it_resumes_still_resumes(
    tmp_path: Path, failing: int
) -> None:
    async def body(island: Island) -> None:
        resume, may_go_on = island.engine.resume, asyncio.Event()

        async def slow() -> None:
            await may_go_on.wait()
            await resume()

        island.engine.resume = slow  # type: ignore[method-assign]
        island.engine.failing_resumes = failing
        swapping = asyncio.create_task(island.swap(6))
        while not island.engine.paused or island.engine.version != 6:
            await turns()
        for _ in range(3):
            swapping.cancel()
            await turns()
            assert not swapping.done()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):  # even where the engine stays paused
            await swapping
        assert island.engine.paused == bool(failing)
        assert island.label() == (None if failing else 6)
        await island.load(6)  # resumes, too

    on_island(tmp_path, body)


def test_what_a_foreign_engine_raised_shows_as_its_error(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        async def install() -> None:
            raise ConnectionError("rank 3 is gone")

        with pytest.raises(ConnectionError):
            await island.gate.swap("engine", 6, install)
        assert island.label() is None
        assert island.error() == "ConnectionError('rank 3 is gone')"

    on_island(tmp_path, body)


def test_a_swap_that_is_cancelled_while_it_drains_leaves_no_trace(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        async with island.gate.admit(accepts("5")):
            swapping = asyncio.create_task(island.swap(6))
            await turns()
            swapping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await swapping
            assert "pause" not in island.engine.calls
            await island.generate(accepts("5"), 1, [])  # open to the old version again

    on_island(tmp_path, body)


def test_i2_resume_is_tried_again(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        island.engine.failing_resumes = 2
        await island.swap(6)
        assert island.engine.calls[-3:] == ["resume"] * 3
        assert island.label() == 6

    on_island(tmp_path, body)


def test_i2_an_engine_that_stays_paused_is_reported_and_serves_nothing(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        async def run() -> None:
            async with island.gate.admit(ANYTHING):
                await asyncio.Event().wait()

        running = asyncio.create_task(run())
        await turns()
        island.engine.failing_resumes = 3
        with pytest.raises(StillPaused, match="resume answered 500"):
            await island.swap(6)
        with pytest.raises(RequestRevoked):
            await running
        assert island.label() is None
        assert "stays paused" in str(island.error())
        await island.load(6)  # resumes, too
        assert island.label() == 6

    on_island(tmp_path, body)


def test_times_are_those_of_the_clock(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        update = island.checkpoints.update(5, 6)
        await island.engine.stage(update)

        async def install() -> None:
            island.now_s += 0.25
            await island.engine.install(update)

        leave = asyncio.Event()

        async def run() -> None:
            async with island.gate.admit(accepts("5")):
                await leave.wait()
                island.now_s += 2.0

        running = asyncio.create_task(run())
        await turns()
        swapping = asyncio.create_task(island.gate.swap("engine", 6, install))
        await turns()
        leave.set()
        report = await swapping
        await running
        assert (report.drain_s, report.pause_s, report.revoked) == (2.0, 0.25, 0)
        assert island.reports[-1] == report

    on_island(tmp_path, body)


def test_after_the_drain_deadline_the_rest_is_revoked_and_keeps_its_spans(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        island.engine.pace()
        tokens: list[GeneratedToken] = []
        straddling: list[GeneratedToken] = []
        pinned = asyncio.create_task(island.generate(accepts("5"), 9, tokens))
        island.engine.permit(2)
        while len(tokens) < 2:
            await asyncio.sleep(0)
        open_ended = asyncio.create_task(island.generate(accepts("5.."), 2, straddling))
        await turns()
        report = await island.swap(6, drain_s=0.0)
        assert (report.outcome, report.revoked) == ("installed", 1)
        with pytest.raises(RequestRevoked, match="not drained within 0 s"):
            await pinned
        island.check_labels(tokens)
        island.engine.permit(2)
        await open_ended
        assert [t.version for t in straddling] == [6, 6]
        assert island.engine.open_requests == 0

    on_island(tmp_path, body)


def test_a_revoked_holder_that_is_cancelled_as_well_stays_cancelled(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        async def run() -> None:
            async with island.gate.admit(accepts("5")):
                await asyncio.Event().wait()

        running = asyncio.create_task(run())
        await turns()
        island.gate.set_served("engine", 6)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    on_island(tmp_path, body)


def test_what_the_agent_states_revokes_who_does_not_accept_it(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        async def run(text: str) -> None:
            async with island.gate.admit(accepts(text)):
                await asyncio.Event().wait()

        waiting = asyncio.create_task(run("7"))
        pinned = asyncio.create_task(run("5"))
        await turns()
        island.gate.set_served("engine", None, error="probe failed")
        assert (island.label(), island.error()) == (None, "probe failed")
        await turns()
        assert not pinned.done()
        island.gate.set_served("engine", 6)
        with pytest.raises(RequestRevoked):
            await pinned
        with pytest.raises(WeightVersionNotReady):
            await waiting

    on_island(tmp_path, body)


def test_a_version_cannot_be_stated_during_a_swap(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        async with island.gate.admit(accepts("5")):
            swapping = asyncio.create_task(island.swap(6))
            await turns()
            with pytest.raises(ValueError, match="being swapped"):
                island.gate.set_served("engine", 7)
        await swapping

    on_island(tmp_path, body)


def test_swaps_of_one_engine_follow_each_other(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        versions: list[int] = []

        async def install(version: int) -> None:
            await turns()
            versions.append(version)

        await asyncio.gather(
            *(island.gate.swap("engine", v, partial(install, v)) for v in (6, 7, 8))
        )
        assert versions == [6, 7, 8]
        assert island.engine.calls[-6:] == ["pause", "resume"] * 3

    on_island(tmp_path, body)


def test_a_wait_ends_with_its_deadline(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        with pytest.raises(WeightVersionNotReady) as late:
            async with island.gate.admit(accepts("6"), 0.01):
                pass
        assert (late.value.served, late.value.newest) == ((5,), 5)
        assert island.gate.waiting == 0

    on_island(tmp_path, body)


def test_too_many_who_wait_are_told_to_come_back(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        gate = AdmissionGate({"engine": island.engine}, config=GateConfig(max_waiting=1))
        gate.set_served("engine", 5)

        async def wait() -> None:
            async with gate.admit(accepts("6"), FOREVER_S):
                pass

        first = asyncio.create_task(wait())
        await turns()
        with pytest.raises(WeightVersionNotReady):
            await wait()
        gate.set_served("engine", 6)
        await first

    on_island(tmp_path, body)
