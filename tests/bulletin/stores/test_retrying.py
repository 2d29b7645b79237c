"""Trying again: bounded in time and number, never where it could hide what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    StoreDenied,
    StoreUnavailable,
    Unanswered,
)
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.retries import Retries, RetryBudget, RetryConfig
from skerry.bulletin.stores.retrying import Retrying
from tests.bulletin.faults import FakeTime, FaultyStore
from tests.bulletin.store_contract import StoreContract


class TestRetrying(StoreContract):
    @pytest.fixture
    def store(self) -> Retrying:
        return Retrying(MemoryStore())


def retries(time: FakeTime, **changes: float) -> Retries:
    budget = RetryBudget(clock=time.clock)
    config = RetryConfig(**changes)
    return Retries(config, budget=budget, clock=time.clock, sleep=time.sleep, random=Random(1))


def failing(
    inner: ObjectStore, times: int, error: Unanswered, *, after: bool = False
) -> FaultyStore:
    """Return a store that does not answer so many times, before or after the work is done."""
    left = times

    def hook(verb: str, key: str) -> None:
        nonlocal left
        if left:
            left -= 1
            raise error

    return FaultyStore(inner, after=hook) if after else FaultyStore(inner, before=hook)


UNAVAILABLE = StoreUnavailable("k", "no answer")
UNKNOWN = OutcomeUnknown("k", "no answer")
WRITES: list[Callable[[ObjectStore], object]] = [
    lambda store: store.put("k", [b"xy"]),
    lambda store: store.put("k", iter([b"x", b"y"])),
    lambda store: store.replace("k", b"xy"),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("error", [UNAVAILABLE, UNKNOWN])
@pytest.mark.parametrize("after", [False, True])
def test_writes_of_the_same_bytes_are_repeated(
    write: Callable[[ObjectStore], object], error: Unanswered, after: bool
) -> None:
    inner = MemoryStore()
    write(Retrying(failing(inner, 3, error, after=after), retries(FakeTime())))
    assert inner.get("k", limit_bytes=2) == b"xy"


def test_reads_are_repeated_and_a_stream_goes_on_where_it_broke_off() -> None:
    inner = MemoryStore()
    inner.put("k", [b"0123456789"])

    class Breaking(FaultyStore):
        def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
            yield self.inner.get_range(key, start, min(start + 3, stop))
            if start + 3 < stop:
                raise UNAVAILABLE

    store = Retrying(Breaking(inner), retries(FakeTime()))
    assert b"".join(store.stream("k", 1, 10)) == b"123456789"
    store = Retrying(failing(inner, 2, UNAVAILABLE), retries(FakeTime()))
    assert store.get("k", limit_bytes=10) == b"0123456789"
    store = Retrying(failing(inner, 2, UNAVAILABLE), retries(FakeTime()))
    assert store.size("k") == 10


def test_a_list_goes_on_after_the_last_name() -> None:
    class Breaking(MemoryStore):
        def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
            for number, name in enumerate(super().list_after(prefix, after)):
                if number == 2:
                    raise UNAVAILABLE
                yield name

    inner = Breaking()
    for name in "abcdefg":
        inner.put(name, [b""])
    assert list(Retrying(inner, retries(FakeTime())).list_after("", "a")) == list("bcdefg")


def test_an_unknown_outcome_of_a_conditional_put_is_the_callers_business() -> None:
    inner = MemoryStore()
    time = FakeTime()
    store = Retrying(failing(inner, 1, UNKNOWN, after=True), retries(time))
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("k", b"mine")
    assert time.sleeps == []
    with pytest.raises(AlreadyExists):
        store.put_if_absent("k", b"mine")
    Retrying(failing(inner, 2, UNAVAILABLE), retries(time)).put_if_absent("k2", b"x")
    assert len(time.sleeps) == 2


@pytest.mark.parametrize("error", [NotFound("k"), StoreDenied("k", "no"), AlreadyExists("k")])
def test_what_repeating_cannot_help_is_not_repeated(error: Exception) -> None:
    def refuse(verb: str, key: str) -> None:
        raise error

    time = FakeTime()
    with pytest.raises(type(error)):
        Retrying(FaultyStore(MemoryStore(), before=refuse), retries(time)).size("k")
    assert time.sleeps == []


@pytest.mark.parametrize("write", WRITES)
def test_patience_ends_with_the_last_error(write: Callable[[ObjectStore], object]) -> None:
    time = FakeTime()
    store = Retrying(failing(MemoryStore(), 10**9, UNAVAILABLE), retries(time, write_s=7))
    with pytest.raises(StoreUnavailable, match="no answer"):
        write(store)
    assert time.now_s <= 7


def test_a_source_that_failed_is_never_taken_for_one_that_ended() -> None:
    """A generator that raised goes on as if it were exhausted: half an object would be stored."""

    def parts() -> Iterator[bytes]:
        yield b"half"
        raise StoreUnavailable("elsewhere", "the source is another store")

    inner = MemoryStore()
    with pytest.raises(StoreUnavailable, match="elsewhere"):
        Retrying(inner, retries(FakeTime())).put("k", parts())
    with pytest.raises(NotFound):
        inner.size("k")


def test_parts_too_many_to_keep_are_not_sent_again() -> None:
    class Late(MemoryStore):
        def put(self, key: str, parts: Iterable[bytes]) -> int:
            for _ in parts:
                pass
            raise UNAVAILABLE

    time = FakeTime()
    with pytest.raises(StoreUnavailable):
        Retrying(Late(), retries(time)).put("k", (bytes(1 << 20) for _ in range(65)))
    assert time.sleeps == []


def test_a_store_is_given_the_time_that_it_asks_for_up_to_a_limit() -> None:
    for asked, least, most in ((3, 3.0, 3.2), (10_000, 20.0, 20.2)):
        time = FakeTime()
        busy = StoreUnavailable("k", "busy", retry_after_s=asked)
        inner = MemoryStore()
        inner.put("k", [b"x"])
        Retrying(failing(inner, 1, busy), retries(time)).size("k")
        assert least < time.now_s < most


@given(
    st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=200),
    st.floats(1, 50),
    st.floats(0.1, 20),
    st.floats(0, 1),
)
def test_never_more_retries_than_the_budget_allows(
    events: list[tuple[float, bool]], capacity: float, per_s: float, per_success: float
) -> None:
    time = FakeTime()
    budget = RetryBudget(capacity=capacity, per_s=per_s, per_success=per_success, clock=time.clock)
    due: list[float] = []
    successes = 0
    for passed_s, success in events:
        time.now_s += passed_s
        if success:
            budget.succeeded()
            successes += 1
        elif (wait_s := budget.claim(within_s=30.0)) is not None:
            assert 0 <= wait_s <= 30.0
            due.append(time.now_s + wait_s)
    for end in due:
        made = sum(moment <= end for moment in due)
        assert made <= capacity + per_s * end + per_success * successes + 1e-6
    assert budget.spent == len(due)


def test_settings_without_sense_are_refused() -> None:
    for changes in ({"read_s": -1}, {"first_delay_s": 0}, {"first_delay_s": 9}):
        with pytest.raises(ValueError, match=r"expected|negative"):
            RetryConfig(**changes)
    with pytest.raises(ValueError, match="capacity"):
        RetryBudget(capacity=0)
