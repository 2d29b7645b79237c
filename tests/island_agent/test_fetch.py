"""Objects arrive whole and right, or not at all."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from skerry.bulletin.errors import NotFound, ShortObject, StoreUnavailable
from skerry.bulletin.records import ObjectRef
from skerry.bulletin.stores import MemoryStore
from skerry.codec.digest import digest_bytes
from skerry.island_agent.errors import ObjectCorrupt, ObjectUnavailable, SpoolFull, Stopped
from skerry.island_agent.fetch import FetchConfig, Fetcher
from tests.island_agent.stores import Change, TwistedStore

DATA = Random(1).randbytes(10_000)
REF = ObjectRef(key="packs/x", size=len(DATA), digest=digest_bytes(DATA))


def fetcher(
    tmp_path: Path, on_range: Change | None = None, **changes: int
) -> tuple[Fetcher, TwistedStore]:
    store = MemoryStore()
    store.put(REF.key, [DATA])
    twisted = TwistedStore(store, on_range)
    config = FetchConfig(backoff_s=0.0, attempts=3, **changes)
    return Fetcher(twisted, tmp_path, config), twisted


def test_an_object_is_read_once_from_its_start_to_its_end(tmp_path: Path) -> None:
    fetch, store = fetcher(tmp_path)
    assert fetch.fetch(REF).read_bytes() == DATA
    assert [start for _, start, _ in store.ranges] == list(range(0, len(DATA), 1000))
    assert fetch.progress.bytes_read == len(DATA)


def test_an_object_that_is_spooled_is_not_read_again(tmp_path: Path) -> None:
    fetch, store = fetcher(tmp_path)
    fetch.fetch(REF)
    count = len(store.ranges)
    fetch.fetch(REF)
    assert len(store.ranges) == count


def test_a_half_downloaded_object_is_resumed_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / f"{REF.digest}.part").write_bytes(DATA[:4321])
    fetch, store = fetcher(tmp_path)
    assert fetch.fetch(REF).read_bytes() == DATA
    assert min(start for _, start, _ in store.ranges) == 4321
    assert fetch.progress.bytes_resumed == 4321


@pytest.mark.parametrize("part", [b"x" * 4321, DATA + b"longer"])
def test_a_damaged_part_is_thrown_away(tmp_path: Path, part: bytes) -> None:
    (tmp_path / f"{REF.digest}.part").write_bytes(part)
    fetch, _ = fetcher(tmp_path)
    assert fetch.fetch(REF).read_bytes() == DATA


def test_a_spooled_object_that_was_damaged_is_read_again(tmp_path: Path) -> None:
    fetch, _ = fetcher(tmp_path)
    path = fetch.fetch(REF)
    path.write_bytes(DATA[:-1] + b"!")
    assert fetch.fetch(REF).read_bytes() == DATA


def test_connection_resets_and_short_bodies_are_retried(tmp_path: Path) -> None:
    seen: dict[int, int] = {}

    def on_range(key: str, start: int, data: bytes) -> bytes:
        seen[start] = seen.get(start, 0) + 1
        if start == 3000 and seen[start] == 1:
            raise ConnectionResetError("half way")
        if start == 4000 and seen[start] == 1:
            return data[:-1]
        if start == 5000 and seen[start] == 1:
            raise ShortObject(key, expected=1000, found=10)
        return data

    fetch, _ = fetcher(tmp_path, on_range)
    assert fetch.fetch(REF).read_bytes() == DATA
    assert fetch.progress.retries == 3


@pytest.mark.parametrize(
    "error", [StoreUnavailable("packs/x", "no answer"), NotFound("packs/x"), OSError("broken")]
)
def test_what_never_heals_names_the_object_and_keeps_what_came(
    tmp_path: Path, error: Exception
) -> None:
    def on_range(key: str, start: int, data: bytes) -> bytes:
        if start >= 5000:
            raise error
        return data

    fetch, store = fetcher(tmp_path, on_range)
    with pytest.raises(ObjectUnavailable, match="packs/x") as caught:
        fetch.fetch(REF)
    assert caught.value.key == REF.key
    assert (tmp_path / f"{REF.digest}.part").read_bytes() == DATA[:5000]
    assert sum(start == 5000 for _, start, _ in store.ranges) == 3


@pytest.mark.parametrize("size", [0, 999, 1001])
def test_a_store_that_answers_the_wrong_number_of_bytes_is_never_believed(
    tmp_path: Path, size: int
) -> None:
    fetch, _ = fetcher(tmp_path, lambda key, start, data: (data + b"x")[:size])
    with pytest.raises(ObjectUnavailable, match=f"expected 1000 bytes, found {size}"):
        fetch.fetch(REF)


def test_a_store_that_answers_other_bytes_is_never_believed(tmp_path: Path) -> None:
    fetch, _ = fetcher(tmp_path, lambda key, start, data: bytes(len(data)))
    with pytest.raises(ObjectCorrupt, match=REF.digest):
        fetch.fetch(REF)
    assert list(tmp_path.iterdir()) == []


def test_what_exceeds_the_spool_is_refused_before_a_byte_is_read(tmp_path: Path) -> None:
    fetch, store = fetcher(tmp_path, spool_bytes=9_999)
    with pytest.raises(SpoolFull, match="10000 bytes to spool, the limit is 9999"):
        fetch.reserve([REF])
    assert store.ranges == []


def test_reserving_drops_what_nobody_wants_any_more(tmp_path: Path) -> None:
    fetch, _ = fetcher(tmp_path)
    wanted, other = tmp_path / f"{REF.digest}.part", tmp_path / ("0" * 64)
    wanted.write_bytes(DATA[:10])
    other.write_bytes(b"old")
    fetch.reserve([REF])
    assert [path.name for path in tmp_path.iterdir()] == [wanted.name]


def test_a_stop_ends_a_download_that_is_waiting(tmp_path: Path) -> None:
    stop = threading.Event()

    def on_range(key: str, start: int, data: bytes) -> bytes:
        stop.set()
        raise ConnectionResetError("again")

    store = MemoryStore()
    store.put(REF.key, [DATA])
    config = FetchConfig(backoff_s=3600, backoff_limit_s=3600, attempts=3)
    fetch = Fetcher(TwistedStore(store, on_range), tmp_path, config, stop=stop)
    with pytest.raises(Stopped):
        fetch.fetch(REF)


def test_an_empty_object_is_an_object(tmp_path: Path) -> None:
    fetch, store = fetcher(tmp_path)
    store.put("packs/empty", [b""])
    ref = ObjectRef(key="packs/empty", size=0, digest=digest_bytes(b""))
    assert fetch.fetch(ref).read_bytes() == b""


def test_objects_are_fetched_within_the_stated_memory(tmp_path: Path) -> None:
    store = MemoryStore()
    refs = []
    for number in range(6):
        data = Random(number).randbytes(4_000_000)
        store.put(f"packs/{number}", [data])
        refs.append(ObjectRef(key=f"packs/{number}", size=len(data), digest=digest_bytes(data)))
    peaks = []
    for name in ("a", "b", "c"):  # threads of other tests, which are on their way out, allocate too
        (tmp_path / name).mkdir()
        fetch = Fetcher(TwistedStore(store), tmp_path / name, FetchConfig(parallel=3))
        tracemalloc.start()
        try:
            fetch.fetch_all(refs)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # Blocks to hash, two for each object that is read; pieces are written as they come.
    assert min(peaks) < 3 * 2 * 2**20 + 1_000_000


def test_a_store_that_fails_thousands_of_times_is_asked_again_all_the_same(tmp_path: Path) -> None:
    left = [1100]  # 2.0 ** 1024 is no float

    def failing(key: str, start: int, data: bytes) -> bytes:
        if left[0]:
            left[0] -= 1
            raise StoreUnavailable(key, "no answer")
        return data

    store = MemoryStore()
    store.put(REF.key, [DATA])
    config = FetchConfig(backoff_s=1e-9, backoff_limit_s=1e-9, attempts=2000)
    fetch = Fetcher(TwistedStore(store, failing), tmp_path, config)
    assert fetch.fetch(REF).read_bytes() == DATA
    assert left == [0]
