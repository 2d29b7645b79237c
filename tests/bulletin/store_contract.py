"""What every object store promises.  Subclass StoreContract and give it a `store` fixture."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

import pytest

from skerry.bulletin.errors import (
    AlreadyExists,
    InvalidKey,
    NotFound,
    ObjectTooLarge,
    ShortObject,
)
from skerry.bulletin.store import ObjectStore

HOSTILE_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../out",
    "a/../../out",
    "a/..",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "a\\b",
    "..\\out",
    "a\0b",
    "a\nb",
    "\x7f",
    "\ud800",
    "x" * 256,
    "/".join(["d" * 100] * 11),
    ".skerry-tmp-0123",
    "a/.skerry-tmp-0123",
]


class StoreContract:
    writers, slots = 8, 25  # that race; some servers take a second for each loser

    def test_returns_what_was_put(self, store: ObjectStore) -> None:
        assert store.put("a/b", [b"one", b"", b"two"]) == 6
        assert store.get("a/b", limit_bytes=6) == b"onetwo"
        assert store.size("a/b") == 6

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.put("empty", [])
        assert store.get("empty", limit_bytes=0) == b""
        assert store.size("empty") == 0
        assert store.get_range("empty", 0, 0) == b""

    def test_a_missing_object_is_not_found(self, store: ObjectStore) -> None:
        store.put("a/b", [b"x"])
        for key in ("missing", "a/c", "a", "a/b/c"):
            with pytest.raises(NotFound, match=key):
                store.get(key, limit_bytes=10)
            with pytest.raises(NotFound):
                store.get_range(key, 0, 1)
            with pytest.raises(NotFound):
                store.size(key)
            for stop in (0, 1):
                with pytest.raises(NotFound):
                    list(store.stream(key, 0, stop))

    def test_never_returns_more_than_the_limit_and_never_truncates(
        self, store: ObjectStore
    ) -> None:
        store.put("k", [b"12345"])
        assert store.get("k", limit_bytes=5) == b"12345"
        with pytest.raises(ObjectTooLarge) as caught:
            store.get("k", limit_bytes=4)
        assert (caught.value.limit_bytes, caught.value.found) == (4, 5)

    def test_a_range_is_exact_or_refused(self, store: ObjectStore) -> None:
        store.put("k", [b"12345"])
        assert store.get_range("k", 1, 3) == b"23"
        assert store.get_range("k", 0, 5) == b"12345"
        assert store.get_range("k", 5, 5) == b""
        for start, stop, found in ((3, 6, 2), (5, 6, 0), (9, 12, 0)):
            with pytest.raises(ShortObject) as caught:
                store.get_range("k", start, stop)
            assert (caught.value.expected, caught.value.found) == (stop - start, found)
        for start, stop in ((-1, 2), (3, 2)):
            with pytest.raises(ValueError, match="expected 0 <="):
                store.get_range("k", start, stop)

    def test_a_stream_is_the_range_in_order_or_refused(self, store: ObjectStore) -> None:
        data = Random(0).randbytes(2_500_000)
        store.put("k", [data])
        for start, stop in ((0, len(data)), (0, 1), (1_234_567, len(data)), (7, 2_000_001), (5, 5)):
            pieces = list(store.stream("k", start, stop))
            assert all(pieces)
            assert b"".join(pieces) == data[start:stop]
        end = len(data)
        for start, stop in ((0, end + 1), (end - 1, end + 1), (end + 1, end + 2)):
            with pytest.raises(ShortObject):
                list(store.stream("k", start, stop))
        for start, stop in ((-1, 2), (3, 2)):
            with pytest.raises(ValueError, match="expected 0 <="):
                list(store.stream("k", start, stop))

    def test_a_stream_that_is_left_half_way_disturbs_nothing(self, store: ObjectStore) -> None:
        data = Random(1).randbytes(3_000_000)
        store.put("k", [data])
        for _ in range(3):
            assert data.startswith(next(store.stream("k", 0, len(data))))
        assert b"".join(store.stream("k", 0, len(data))) == data

    def test_a_taken_key_keeps_its_first_content(self, store: ObjectStore) -> None:
        store.put_if_absent("slot", b"first")
        for data in (b"second", b"first"):
            with pytest.raises(AlreadyExists, match="slot"):
                store.put_if_absent("slot", data)
        assert store.get("slot", limit_bytes=10) == b"first"

    def test_of_many_threads_exactly_one_wins_each_slot(self, store: ObjectStore) -> None:
        writers, slots = self.writers, self.slots
        barrier = Barrier(writers)

        def attempt(writer: int) -> list[int]:
            won = []
            for slot in range(slots):
                barrier.wait()
                try:
                    store.put_if_absent(f"log/{slot}", str(writer).encode() * 500)
                except AlreadyExists:
                    continue
                won.append(slot)
            return won

        with ThreadPoolExecutor(writers) as pool:
            won = list(pool.map(attempt, range(writers)))
        assert sorted(slot for slots_won in won for slot in slots_won) == list(range(slots))
        for writer, slots_won in enumerate(won):
            for slot in slots_won:
                found = store.get(f"log/{slot}", limit_bytes=500)
                assert found == str(writer).encode() * 500

    def test_a_reader_sees_the_old_object_or_the_new_one(self, store: ObjectStore) -> None:
        store.replace("hint", b"0" * 5000)

        def write(_: int) -> None:
            for n in range(50):
                store.replace("hint", str(n % 10).encode() * 5000)

        with ThreadPoolExecutor(2) as pool:
            writers = [pool.submit(write, n) for n in range(2)]
            while not all(writer.done() for writer in writers):
                assert len(set(store.get("hint", limit_bytes=5000))) == 1
            for writer in writers:
                writer.result()

    def test_an_error_of_the_source_passes_through_and_stores_nothing(
        self, store: ObjectStore
    ) -> None:
        def parts() -> Iterator[bytes]:
            yield b"half"
            raise OSError("the source is gone")

        with pytest.raises(OSError, match="the source is gone"):
            store.put("packs/x", parts())
        with pytest.raises(NotFound):
            store.size("packs/x")
        assert list(store.list_after("")) == []

    def test_putting_an_immutable_object_again_is_fine(self, store: ObjectStore) -> None:
        assert store.put("k", [b"same"]) == store.put("k", [b"same"]) == 4
        assert store.get("k", limit_bytes=4) == b"same"

    def test_replace_sets_a_mutable_object(self, store: ObjectStore) -> None:
        store.replace("hint", b"longer")
        store.replace("hint", b"new")
        assert store.get("hint", limit_bytes=10) == b"new"

    def test_lists_keys_in_byte_order_after_a_key(self, store: ObjectStore) -> None:
        names = ["a", "a-b", "b.txt", "b/a", "b/c/d", "b0", "log/01", "log/02", "log/10", "é", "𝄞"]
        for name in reversed(names):
            store.put(name, [b"x"])
        assert names == sorted(names, key=str.encode)
        for prefix in ["", "b", "b/", "b/c", "log/", "log/0", "lo", "nothing", "b/c/d/"]:
            for after in ["", "a", "b", "b.txt", "b/", "b/b", "b0", "log/01", "log/02", "zzz", "𝄞"]:
                expected = [n for n in names if n.startswith(prefix) and n > after]
                assert list(store.list_after(prefix, after)) == expected

    def test_deletes_idempotently(self, store: ObjectStore) -> None:
        store.put("a/b", [b"x"])
        for key in ("a/b", "a/b", "a", "never/was", "a/b/c"):
            store.delete(key)
        with pytest.raises(NotFound):
            store.get("a/b", limit_bytes=1)
        store.put_if_absent("a/b", b"again")

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    def test_refuses_a_hostile_key_in_every_verb(self, store: ObjectStore, key: str) -> None:
        for attempt in (
            lambda: store.get(key, limit_bytes=1),
            lambda: store.get_range(key, 0, 1),
            lambda: store.size(key),
            lambda: list(store.stream(key, 0, 1)),
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.put(key, [b"x"]),
            lambda: store.replace(key, b"x"),
            lambda: store.delete(key),
        ):
            with pytest.raises(InvalidKey):
                attempt()
        assert list(store.list_after("")) == []
