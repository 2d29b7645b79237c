"""Reading ahead: the same as one slot after the other, with fewer round trips."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin.ahead import MOST_AT_ONCE, consecutive
from skerry.bulletin.errors import StoreUnavailable


@given(st.integers(0, 300), st.integers(0, 300), st.one_of(st.just(-1), st.integers(0, 400)))
@settings(max_examples=40, deadline=None)
def test_what_is_yielded_is_every_slot_up_to_the_first_free_one(
    first: int, taken: int, known: int
) -> None:
    asked: list[int] = []

    def read(seq: int) -> bytes | None:
        asked.append(seq)
        return str(seq).encode() if seq < taken else None

    with closing(consecutive(read, first, known=known)) as slots:
        assert [int(data) for data in slots] == list(range(first, taken))
    assert len(asked) == len(set(asked))
    found, behind = max(0, taken - first), max(0, taken - max(first, known + 1))
    too_many = len(asked) - found
    assert too_many <= max(1, behind // 2, min(MOST_AT_ONCE, known - taken + 1))


def test_an_error_comes_in_its_turn_and_nothing_is_left_running() -> None:
    def read(seq: int) -> bytes | None:
        if seq == 100:
            raise StoreUnavailable(str(seq), "down")
        return b""

    slots = consecutive(read, 0, known=1000)
    assert len([next(slots) for _ in range(100)]) == 100
    with pytest.raises(StoreUnavailable, match="100"):
        next(slots)
    assert not [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


def test_no_more_than_the_limit_is_asked_for_at_once_and_an_early_end_stops_it() -> None:
    lock, running, most = threading.Lock(), 0, 0
    started = threading.Event()

    def read(seq: int) -> bytes | None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == MOST_AT_ONCE:
                started.set()
        started.wait(5)
        with lock:
            running -= 1
        return b""

    with closing(consecutive(read, 0, known=2**63)) as slots:
        for _ in range(200):
            next(slots)
    assert most == MOST_AT_ONCE
    assert running == 0
