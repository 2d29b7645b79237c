"""A relay's cache: bounded, least recently used first, and nothing comes out that differs."""

from __future__ import annotations

import errno
import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.codec.digest import Digest, digest_bytes
from skerry.island_agent.errors import MirrorBusy, NoRoom
from skerry.island_agent.relay_cache import RelayCache

BLOCK = 4096


def content(n: int) -> bytes:
    return bytes([n]) * (BLOCK * (1 + n % 3))


def add(cache: RelayCache, data: bytes) -> Digest:
    digest = digest_bytes(data)
    with cache.room(digest, len(data)) as path:
        path.write_bytes(data)
    return digest


def break_off(
    cache: RelayCache, digest: Digest, size: int, path: Path, data: bytes, error: OSError
) -> None:
    """Begin an object, leave `data` at `path`, and fail."""
    with cache.room(digest, size):
        path.write_bytes(data)
        raise error


def read(cache: RelayCache, digest: Digest) -> bytes | None:
    kept = cache.open(digest)
    if kept is None:
        return None
    with kept.file as file:
        return file.read()


def files(directory: Path) -> int:
    return sum(
        path.stat().st_size for path in directory.rglob("*") if path.is_file()
    )  # the lock is empty


@given(
    limit=st.integers(1, 12).map(lambda n: n * BLOCK),
    uses=st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=40),
)
def test_the_cache_is_a_bounded_lru(
    tmp_path_factory: pytest.TempPathFactory, limit: int, uses: list[tuple[bool, int]]
) -> None:
    directory = tmp_path_factory.mktemp("cache")
    cache = RelayCache(directory, limit_bytes=limit)
    model: OrderedDict[int, int] = OrderedDict()
    for adds, n in uses:
        data = content(n)
        if adds and len(data) > limit:
            with pytest.raises(NoRoom):
                add(cache, data)
            model.pop(n, None)
        elif adds:
            add(cache, data)
            model.pop(n, None)
            while sum(model.values()) + len(data) > limit:
                model.popitem(last=False)
            model[n] = len(data)
        else:
            assert read(cache, digest_bytes(data)) == (data if n in model else None)
            if n in model:
                model.move_to_end(n)
        assert cache.nbytes == sum(model.values()) <= limit
        assert files(directory) == cache.nbytes
    shutil.rmtree(directory)


def test_what_an_earlier_process_left_is_hashed_before_it_is_given_out(tmp_path: Path) -> None:
    first = RelayCache(tmp_path, limit_bytes=1 << 20)
    sound, damaged = add(first, b"sound"), add(first, b"damaged")
    (tmp_path / "objects" / damaged).write_bytes(b"Damaged")
    first.keep("log-7", b"record")
    first.keep("log-8", b"record 8")
    path = tmp_path / "objects" / "log-8.sealed"
    path.write_bytes(path.read_bytes().replace(b"8", b"9"))
    first.close()
    cache = RelayCache(tmp_path, limit_bytes=1 << 20)
    assert read(cache, sound) is None
    assert cache.verify(sound)
    assert read(cache, sound) == b"sound"
    assert not cache.verify(damaged)
    assert not (tmp_path / "objects" / damaged).exists()
    assert cache.kept("log-7") == b"record"
    assert cache.kept("log-8") is None
    assert not path.exists()


def test_a_smaller_limit_than_before_holds_at_once(tmp_path: Path) -> None:
    cache = RelayCache(tmp_path, limit_bytes=100 * BLOCK)
    for n in range(9):
        add(cache, content(n))
    assert files(tmp_path) > 5 * BLOCK
    cache.close()
    RelayCache(tmp_path, limit_bytes=5 * BLOCK)
    assert files(tmp_path) <= 5 * BLOCK


def test_an_object_that_is_being_read_survives_its_eviction(tmp_path: Path) -> None:
    cache = RelayCache(tmp_path, limit_bytes=2 * BLOCK)
    kept = cache.open(add(cache, b"a" * BLOCK))
    assert kept is not None
    add(cache, b"b" * 2 * BLOCK)
    assert read(cache, digest_bytes(b"a" * BLOCK)) is None
    with kept.file as file:
        assert file.read() == b"a" * BLOCK


def test_a_full_disk_is_no_room_and_leaves_nothing(tmp_path: Path) -> None:
    cache = RelayCache(tmp_path, limit_bytes=1 << 20)
    kept = add(cache, b"kept")
    digest = digest_bytes(b"new")
    full = OSError(errno.ENOSPC, "no space left on device")
    with pytest.raises(NoRoom):
        break_off(cache, digest, 3, tmp_path / "objects" / digest, b"n", full)
    assert not (tmp_path / "objects" / digest).exists()
    assert read(cache, kept) == b"kept"
    assert cache.nbytes == BLOCK
    assert add(cache, b"new") == digest


def test_the_disk_keeps_what_it_should_spare(tmp_path: Path) -> None:
    cache = RelayCache(tmp_path, limit_bytes=1 << 60, spare_bytes=1 << 60)
    with pytest.raises(NoRoom) as refused:
        add(cache, b"x")
    assert refused.value.needed == 1
    assert files(tmp_path) == 0


def test_a_second_process_is_refused_before_it_touches_anything(tmp_path: Path) -> None:
    cache = RelayCache(tmp_path, limit_bytes=10 * BLOCK)
    kept = add(cache, b"kept" * BLOCK)
    under_way = tmp_path / "objects" / ".x.new"
    under_way.write_bytes(b"being written")
    with pytest.raises(MirrorBusy):
        RelayCache(tmp_path, limit_bytes=BLOCK)
    assert under_way.exists()
    assert read(cache, kept) == b"kept" * BLOCK
    cache.close()
    RelayCache(tmp_path, limit_bytes=BLOCK)
    assert files(tmp_path) == 0


def test_one_object_that_cannot_fit_costs_nothing_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = RelayCache(tmp_path, limit_bytes=1 << 60)
    kept = [add(cache, content(n)) for n in range(5)]
    cache.keep("log-0", b"record")
    before = cache.nbytes
    huge = digest_bytes(b"huge")
    with pytest.raises(NoRoom), cache.room(huge, 1 << 59):  # more than the disk
        pass
    cache.close()
    cache = RelayCache(tmp_path, limit_bytes=20 * BLOCK)
    with cache.room(digest_bytes(b"under way"), 10 * BLOCK) as path:
        with pytest.raises(NoRoom), cache.room(huge, 11 * BLOCK):  # more than the limit leaves
            pass
        with pytest.raises(NoRoom):
            cache.keep("log-1", bytes(11 * BLOCK))
        path.write_bytes(b"u")
    assert cache.nbytes == before + 10 * BLOCK
    assert all(cache.verify(digest) for digest in kept)
    assert cache.kept("log-0") == b"record"


def test_what_was_begun_counts_whether_or_not_it_can_go_on(tmp_path: Path) -> None:
    cache = RelayCache(tmp_path, limit_bytes=10 * BLOCK)
    digest = digest_bytes(b"begun")
    part = cache.part(digest)
    with pytest.raises(ConnectionResetError):
        break_off(cache, digest, 9 * BLOCK, part, b"p" * 8 * BLOCK, ConnectionResetError())
    with cache.room(digest_bytes(b"4"), 2 * BLOCK) as path:
        with pytest.raises(NoRoom), cache.room(digest, 9 * BLOCK):
            pass
        path.write_bytes(b"4" * 2 * BLOCK)
    assert cache.nbytes == 10 * BLOCK == files(tmp_path)
    add(cache, b"5" * 8 * BLOCK)
    assert cache.nbytes == 10 * BLOCK == files(tmp_path)
    assert not part.exists()


def test_a_begun_object_is_resumed_or_makes_room(tmp_path: Path) -> None:
    cache = RelayCache(tmp_path, limit_bytes=4 * BLOCK)
    digest = digest_bytes(b"a" * 3 * BLOCK)
    part = cache.incoming / f"{digest}.part"
    with pytest.raises(ConnectionResetError):
        break_off(cache, digest, 3 * BLOCK, part, b"a" * 2 * BLOCK, ConnectionResetError())
    assert cache.nbytes == 2 * BLOCK
    with cache.room(digest, 3 * BLOCK) as path:
        assert part.stat().st_size == 2 * BLOCK
        part.rename(path)
        path.write_bytes(b"a" * 3 * BLOCK)
    other = digest_bytes(b"z")
    begun = cache.incoming / f"{other}.part"
    with pytest.raises(ConnectionResetError):
        break_off(cache, other, BLOCK, begun, b"z", ConnectionResetError())
    add(cache, b"b" * BLOCK)
    assert not list(cache.incoming.iterdir())
    assert read(cache, digest) == b"a" * 3 * BLOCK
