"""Waiting: growing delays, a cap, a limit that is kept exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.patience import Patience
from tests.bulletin.faults import FakeTime


@given(st.floats(0, 1000))
def test_waits_exactly_its_limit_in_growing_delays(limit_s: float) -> None:
    time = FakeTime()
    attempts = list(time.patience(limit_s).attempts())
    assert attempts == list(range(len(time.sleeps) + 1))
    assert time.now_s == pytest.approx(limit_s)
    assert all(delay <= 1.0 for delay in time.sleeps)
    assert time.sleeps[:-1] == sorted(time.sleeps[:-1])


def test_without_patience_there_is_one_attempt() -> None:
    time = FakeTime()
    assert list(time.patience(0).attempts()) == [0]
    assert time.sleeps == []


def test_nonsense_is_refused() -> None:
    for limit_s, first_delay_s in ((-1.0, 0.1), (1.0, 0.0), (1.0, 2.0)):
        with pytest.raises(ValueError, match="expected a limit"):
            Patience(limit_s=limit_s, first_delay_s=first_delay_s)
