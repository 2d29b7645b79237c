"""What else a swap, a wait or an answer meets: doubts, a pause that drains, crowds, the idle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from skerry.inference.config import GateConfig, ServerConfig
from skerry.inference.engine import EngineBroken
from skerry.inference.errors import RequestRevoked, WeightVersionNotReady
from skerry.inference.gate import AdmissionGate
from tests.inference.passing import CHAT, passing_island
from tests.inference.test_passing import ASKED, feed, run, there
from tests.inference.test_swap import ANYTHING, FOREVER_S, Island, accepts, on_island, turns


@pytest.mark.parametrize("whole", [False, True])
def test_an_engine_that_is_in_doubt_gets_no_label_back_from_the_swap_under_way(
    tmp_path: Path, whole: bool
) -> None:
    """The mirror that it loaded was found damaged: it, and what is installed on it, is unknown."""

    async def body(island: Island) -> None:
        async def install() -> None:
            island.gate.set_served("engine", None, error="it loaded a mirror that is damaged")

        change = island.gate.reload if whole else island.gate.swap
        with pytest.raises(EngineBroken, match="damaged"):
            await change("engine", 6, install)
        assert (island.label(), island.reports[-1].outcome) == (None, "broken")
        assert "damaged" in (island.error() or "")
        await island.load(6)  # and the next one does what it should
        assert island.label() == 6

    on_island(tmp_path, body)


def test_an_engine_that_drains_by_itself_may_take_longer_than_a_pause(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        ended = asyncio.Event()
        config = GateConfig(pause_limit_s=0.001)
        gate = AdmissionGate({"engine": island.engine}, config=config)
        gate.set_served("engine", 5)

        async def pause() -> None:
            await ended.wait()

        async def ask() -> None:
            async with gate.admit(ANYTHING):
                await asyncio.Event().wait()

        async def install() -> None: ...

        island.engine.pause_drains = True  # type: ignore[attr-defined]
        island.engine.pause = pause  # type: ignore[method-assign]
        running = asyncio.create_task(ask())
        await turns()
        running.add_done_callback(lambda _: ended.set())
        report = await gate.swap("engine", 6, install, drain_s=0.01)
        with pytest.raises(RequestRevoked, match="not drained"):
            await running
        assert (report.outcome, report.revoked) == ("installed", 1)
        ended.clear()
        swapping = asyncio.create_task(gate.swap("engine", 7, install))
        await asyncio.wait([swapping], timeout=0.05)  # fifty times the limit of a pause
        assert not swapping.done()
        ended.set()
        assert (await swapping).outcome == "installed"

    on_island(tmp_path, body)


def test_too_many_who_wait_for_a_swap_are_told_to_come_back(tmp_path: Path) -> None:
    """Each may hold a body of many MiB."""

    async def body(island: Island) -> None:
        gate = AdmissionGate({"engine": island.engine}, config=GateConfig(max_waiting=1))
        gate.set_served("engine", 5)
        swapped = asyncio.Event()

        async def install() -> None:
            await swapped.wait()

        async def ask() -> None:
            async with gate.admit(ANYTHING, FOREVER_S, pinned=True):
                pass

        swapping = asyncio.create_task(gate.swap("engine", 6, install))
        await turns()
        first = asyncio.create_task(ask())
        await turns()
        with pytest.raises(WeightVersionNotReady):
            await ask()
        swapped.set()
        await swapping
        await first

    on_island(tmp_path, body)


def test_a_swap_is_not_held_up_by_who_reads_nothing_of_an_answer(tmp_path: Path) -> None:
    """A client that stalls would keep its engine from every later version."""

    config = ServerConfig(max_held_bytes=1, stall_s=0.05)
    with passing_island(tmp_path, config) as island:

        async def scenario(http: aiohttp.ClientSession) -> None:
            asking = asyncio.create_task(http.post(CHAT, json=ASKED))
            call = await there(island, island.a.asked.get)
            async with await asking:
                piece = b"A" * (1 << 20)
                await feed(island, call, *([piece] * 64))  # more than kernels hold for it
                while island.gate.view()["a"].running:
                    await asyncio.sleep(0)
                assert call.ended
                await there(island, lambda: island.swap("a"))
            assert island.gate.view()["a"].version == 6

        run(island, scenario)


def test_a_version_that_is_accepted_is_entered_however_many_wait(tmp_path: Path) -> None:
    async def body(island: Island) -> None:
        gate = AdmissionGate({"engine": island.engine}, config=GateConfig(max_waiting=0))
        gate.set_served("engine", 5)
        async with gate.admit(accepts("5"), pinned=True) as ticket:
            assert ticket.version == 5

    on_island(tmp_path, body)
