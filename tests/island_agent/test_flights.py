"""Flights and lanes: one does the work, nobody waits for a thread that he does not need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from skerry.island_agent.errors import Crowded, Stopped
from skerry.island_agent.flights import Flights, Lane

LIMIT_S = 60  # for what never comes when it is wrong


class Jam:
    """A lane of one thread that is held up until `end`."""

    def __init__(self) -> None:
        self.lane = Lane(1, "jam")
        self.end = threading.Event()
        begun = threading.Event()

        def hold() -> None:
            begun.set()
            self.end.wait()

        self.lane.submit(hold)
        begun.wait()


@pytest.fixture
def jam() -> Iterator[Jam]:
    jam = Jam()
    yield jam
    jam.end.set()
    jam.lane.close()


def test_who_has_a_thread_takes_over_what_waits_for_one(jam: Jam) -> None:
    flights: Flights[int] = Flights()
    queued = flights.start("x", lambda: 1, jam.lane)
    assert not queued.done()
    assert flights.run("x", lambda: 2) == 1
    assert queued.result(LIMIT_S) == 1
    jam.end.set()
    assert flights.run("x", lambda: 3) == 3  # and it was done once


def test_another_lane_overtakes_what_waits_for_a_thread(jam: Jam) -> None:
    flights: Flights[int] = Flights()
    queued = flights.start("x", lambda: 1, jam.lane)
    other = Lane(1, "other", bounded=False)
    assert flights.start("x", lambda: 2, other, overtake=True).result(LIMIT_S) == 1
    assert queued.result(LIMIT_S) == 1
    other.close()


def test_a_queue_has_an_end_and_joining_needs_no_place_in_it(jam: Jam) -> None:
    flights: Flights[int] = Flights()
    queued = [flights.start(str(n), lambda: 1, jam.lane) for n in range(4)]
    with pytest.raises(Crowded):
        flights.start("late", lambda: 1, jam.lane).result(LIMIT_S)
    assert flights.start("3", lambda: 1, jam.lane) is queued[3]
    jam.end.set()
    assert [flight.result(LIMIT_S) for flight in queued] == [1] * 4
    jam.lane.close()
    with pytest.raises(Stopped):
        flights.start("x", lambda: 1, jam.lane).result(LIMIT_S)


def test_whoever_begins_everybody_gets_what_it_brought() -> None:
    flights: Flights[object] = Flights()
    lane, own = Lane(2, "lane", bounded=False), Lane(2, "own", bounded=False)
    for n in range(200):
        with ThreadPoolExecutor(3) as pool:
            futures = [
                pool.submit(flights.run, str(n), object),
                pool.submit(lambda n=n: flights.start(str(n), object, lane).result(LIMIT_S)),  # type: ignore[misc]
                pool.submit(
                    lambda n=n: flights.start(str(n), object, own, overtake=True).result(LIMIT_S)  # type: ignore[misc]
                ),
            ]
            assert len({id(future.result(LIMIT_S)) for future in futures}) <= 3
    lane.close()
    own.close()
    assert not flights._under_way
