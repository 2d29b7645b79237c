"""The store in a directory: the contract, several processes, links, and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.bulletin.errors import (
    AlreadyExists,
    InvalidKey,
    NotFound,
    StoreDenied,
    StoreUnavailable,
)
from skerry.bulletin.stores.local import LocalStore
from tests.bulletin.store_contract import StoreContract

RACER = """
import sys
from pathlib import Path
from skerry.bulletin.errors import AlreadyExists
from skerry.bulletin.stores.local import LocalStore
store, name = LocalStore(Path(sys.argv[1])), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
won = []
for slot in range(200):
    try:
        store.put_if_absent(f"log/{slot}", name.encode() * 500)
        won.append(slot)
    except AlreadyExists:
        pass
print(*won)
"""

HALF_PUT = """
import sys
from pathlib import Path
from skerry.bulletin.stores.local import LocalStore
def parts():
    yield b"x" * 100_000
    print("half", flush=True)
    sys.stdin.readline()
    yield b"y"
LocalStore(Path(sys.argv[1])).put("packs/00000001/p", parts())
"""


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path / "root")


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_many_processes_exactly_one_wins_each_slot(tmp_path: Path) -> None:
    racers = [child(RACER, str(tmp_path), name) for name in "abcd"]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = {}
    for name, racer in zip("abcd", racers, strict=True):
        output, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        won[name] = [int(slot) for slot in output.split()]
    assert sorted(slot for slots in won.values() for slot in slots) == list(range(200))
    store = LocalStore(tmp_path)
    for name, slots in won.items():
        assert {store.get(f"log/{s}", limit_bytes=500) for s in slots} <= {name.encode() * 500}


def test_a_put_killed_half_way_leaves_nothing_visible(tmp_path: Path) -> None:
    writer = child(HALF_PUT, str(tmp_path))
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=60)
    store = LocalStore(tmp_path)
    assert list(store.list_after("")) == []
    with pytest.raises(NotFound):
        store.size("packs/00000001/p")
    strays = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(strays) == 1  # the kill did come half way
    store.put("packs/00000001/p", [b"whole"])
    assert list(store.list_after("")) == ["packs/00000001/p"]


def test_no_temporary_file_stays_after_success_or_failure(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("k", b"1")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("k", b"2")
    store.put("p", [b"3"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k", "p"]


def test_symbolic_links_are_not_followed_in_any_verb(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "dir").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(outside / "new")
    store = LocalStore(root)
    for key in ("dir/secret", "file", "dangling"):
        with pytest.raises(NotFound):
            store.get(key, limit_bytes=100)
        with pytest.raises(NotFound):
            store.size(key)
    assert list(store.list_after("")) == []
    with pytest.raises(InvalidKey, match="link"):
        store.put("dir/new", [b"x"])
    with pytest.raises(InvalidKey):
        store.put_if_absent("dir/new", b"x")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("dangling", b"x")
    store.delete("dir/secret")
    store.put("file", [b"mine"])
    store.delete("dangling")
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"
    assert store.get("file", limit_bytes=4) == b"mine"


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "root")
    store.put("a/b", [b"x"])
    assert list(store.list_after("")) == ["a/b"]
    assert (tmp_path / "real/a/b").read_bytes() == b"x"


def test_what_is_no_regular_file_is_no_object(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"x")
    store = LocalStore(tmp_path)
    with pytest.raises(NotFound):
        store.get("fifo", limit_bytes=1)
    assert list(store.list_after("")) == []


def test_a_key_below_or_above_another_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", [b"x"])
    for write in (store.put_if_absent, store.replace):
        with pytest.raises(InvalidKey):
            write("a", b"y")
        with pytest.raises(InvalidKey):
            write("a/b/c", b"y")
    assert store.get("a/b", limit_bytes=1) == b"x"


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    store = LocalStore(tmp_path / "root")
    for write in (store.put_if_absent, store.replace):
        with pytest.raises(StoreDenied, match="is not a directory"):
            write("k", b"x")
    with pytest.raises(StoreUnavailable):
        list(store.list_after(""))


def test_reading_an_absent_root_creates_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    assert list(store.list_after("")) == []
    with pytest.raises(NotFound):
        store.get("k", limit_bytes=1)
    store.delete("k")
    assert not (tmp_path / "root").exists()


def synced_directories(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record what is synced, by device and inode: durability has no other witness."""
    seen: list[tuple[int, int]] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        status = os.fstat(fd)
        seen.append((status.st_dev, status.st_ino))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    return seen


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_dev, path.stat().st_ino


@pytest.mark.parametrize("made_before", [False, True])
def test_every_directory_on_the_way_is_durable_before_an_object_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: bool
) -> None:
    root = tmp_path / "a" / "b"
    if made_before:  # by another process, which may not have synced them yet
        (root / "packs/00000001").mkdir(parents=True)
    seen = synced_directories(monkeypatch)
    LocalStore(root).put_if_absent("packs/00000001/p", b"x")
    for directory in (root, root / "packs", root / "packs/00000001"):
        assert identity(directory) in seen
    if not made_before:
        assert identity(tmp_path) in seen
        assert identity(tmp_path / "a") in seen


def test_a_second_object_syncs_its_own_directory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("log/0", b"x")
    seen = synced_directories(monkeypatch)
    store.put_if_absent("log/1", b"x")
    assert identity(tmp_path) not in seen
    assert seen.count(identity(tmp_path / "log")) == 1
