"""The number of streams follows the link: up while it helps, down when it hurts, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.stores.adaptive import LEAST, MOST, AdaptiveLimit, Slots
from tests.bulletin.faults import FakeTime

RANGE = 1 << 20


def settle(rate_of: Callable[[int], float]) -> list[int]:
    """Read over a link that carries `rate_of(streams)` bytes a second; return the numbers taken."""
    time = FakeTime()
    limit = AdaptiveLimit(clock=time.clock)
    values = []
    for _ in range(600):
        time.now_s += RANGE / rate_of(limit.value)
        limit.completed(RANGE)
        values.append(limit.value)
    return values


def test_a_lossy_link_is_read_with_many_streams() -> None:
    """Each stream carries the same, whatever the others do."""
    assert settle(lambda streams: 300_000.0 * streams)[-1] == MOST


def test_a_link_that_is_full_is_not_given_more_streams_for_ever() -> None:
    values = settle(lambda streams: 2e6 * min(streams, 8))
    assert 6 <= sum(values[-100:]) / 100 <= 16


def test_a_server_that_suffers_under_many_is_given_fewer() -> None:
    values = settle(lambda streams: 8e6 / max(1, streams - 6) ** 2)
    assert sum(values[-100:]) / 100 < 12


def test_errors_halve_the_number_and_a_burst_of_them_counts_once() -> None:
    time = FakeTime()
    limit = AdaptiveLimit(start=16, clock=time.clock)
    time.now_s += 1
    for _ in range(10):
        limit.failed()
    assert limit.value == 8
    time.now_s += 1
    limit.failed()
    assert limit.value == 4


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, RANGE), st.booleans()), max_size=300))
def test_the_number_never_leaves_its_limits(events: list[tuple[float, int, bool]]) -> None:
    time = FakeTime()
    limit = AdaptiveLimit(clock=time.clock)
    for seconds, nbytes, error in events:
        time.now_s += seconds
        if error:
            limit.failed()
        else:
            limit.completed(nbytes)
        assert LEAST <= limit.value <= MOST


def test_no_more_tasks_run_than_there_are_slots_and_cancelled_ones_hold_none() -> None:
    async def scenario() -> None:
        slots = Slots(AdaptiveLimit(start=2, most=2))
        running = most = done = 0
        gate = asyncio.Event()

        async def task() -> None:
            nonlocal running, most, done
            async with slots:
                running += 1
                most = max(most, running)
                try:
                    await gate.wait()
                finally:
                    running -= 1
            done += 1

        tasks = [asyncio.ensure_future(task()) for _ in range(8)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # running
        tasks[5].cancel()  # waiting
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait(tasks)
        assert (most, done) == (2, 6)
        async with slots:
            pass

    asyncio.run(scenario())


def test_limits_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="least <= start <= most"):
        AdaptiveLimit(least=0)
