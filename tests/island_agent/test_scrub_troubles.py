"""What the scrub does when something else goes wrong: it tells, goes on, and hides no damage."""

from __future__ import annotations

import asyncio
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from tests.island_agent.islands import island
from tests.island_agent.runs import Snapshot, assert_is, make_run
from tests.island_agent.test_scrub import flip, tensor_byte

RUN = make_run(2)


def spoil(mirror: Path, version: Snapshot, name: str) -> None:
    """Flip a bit of one tensor."""
    flip(mirror, *tensor_byte(version, name))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("?"), BrokenExecutor("?")])
def test_an_error_that_nobody_foresaw_ends_neither_the_scrub_nor_the_loading_of_engines(
    tmp_path: Path, error: Exception
) -> None:
    left = [2]

    def hook(step: str) -> None:
        if step == "repair-fetched" and left[0]:
            left[0] -= 1
            raise error

    async def main() -> None:
        async with island(tmp_path, RUN.store, hook=hook) as it:
            await it.settle(2)
            spoil(it.mirror, RUN.versions[2], "norm")
            running = asyncio.create_task(it.agent.run())
            while it.agent.state.scrub.failures < 2:
                await asyncio.sleep(0)
            it.engine._version = None  # it was restarted, and needs a mirror that is trusted
            loads = it.engine.loads
            while it.engine.loads == loads or it.served != 2:
                await asyncio.sleep(0)
            it.agent.stop()
            await running
            assert it.agent.state.failures[type(error).__name__] == 2
            assert it.agent.state.scrub.repaired == 1
            assert_is(it.mirror, RUN.versions[2])

    asyncio.run(main())
