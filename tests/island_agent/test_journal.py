"""Install records: what was written is read back, and anything else is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.tensors import TensorChanges
from skerry.island_agent.errors import JournalInvalid
from skerry.island_agent.journal import Journal
from skerry.island_agent.journal_writer import JournalWriter
from skerry.island_agent.marker import Held, Marker
from tests.codec.checkpoints import patched_leaves
from tests.island_agent.runs import random_snapshot

RUN = digest_bytes(b"run")
SNAPSHOT = random_snapshot(words=200)
ORIGIN = Held(version=3, layout=digest_bytes(b"a"), weights=digest_bytes(b"b"))
TARGET = Held(version=5, layout=digest_bytes(b"c"), weights=digest_bytes(b"d"))


def changes_of(name: str, positions: list[int]) -> TensorChanges:
    spec = next(t for t in SNAPSHOT.layout.tensors if t.name == name)
    old = spec.view(SNAPSHOT.read(spec))[positions]
    return TensorChanges(
        spec=spec, positions=np.array(positions), old=old, new=old ^ old.dtype.type(1)
    )


CHANGES = [changes_of("block.weight", [0, 5, 4095]), changes_of("embed", [7]),
           changes_of("ids", [1, 2])]  # fmt: skip


def write(directory: Path) -> Path:
    path = directory / "install"
    with JournalWriter(path, run=RUN, origin=ORIGIN, target=TARGET) as writer:
        for changes in CHANGES:
            writer.add_tensor(changes, patched_leaves(SNAPSHOT.read(changes.spec), changes))
        writer.add_file("config.json", b"old", b"newer")
        writer.add_file("added", None, b"")
        writer.add_file("removed", b"x", None)
        writer.finish()
    return path


@pytest.fixture(name="record", scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Bytes:
    return np.frombuffer(write(tmp_path_factory.mktemp("record")).read_bytes(), np.uint8)


def parse(data: bytes | bytearray | Bytes) -> Journal:
    return Journal(np.frombuffer(bytes(data), np.uint8), SNAPSHOT.layout)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    journal = Journal.open(write(tmp_path), SNAPSHOT.layout)
    assert (journal.run, journal.origin, journal.target) == (RUN, ORIGIN, TARGET)
    assert journal.old_files == {"config.json": b"old", "added": None, "removed": b"x"}
    assert journal.new_files == {"config.json": b"newer", "added": b"", "removed": None}
    assert len(journal.changes) == len(CHANGES)
    for found, expected in zip(journal.changes, CHANGES, strict=True):
        assert found.spec == expected.spec
        assert found.positions.dtype == np.int64
        np.testing.assert_array_equal(found.positions, expected.positions)
        np.testing.assert_array_equal(found.old, expected.old)
        np.testing.assert_array_equal(found.new, expected.new)
        expected_leaves = patched_leaves(SNAPSHOT.read(found.spec), found)
        assert journal.leaves[found.spec.name] == expected_leaves


def test_an_unfinished_record_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "install"
    with JournalWriter(path, run=RUN, origin=ORIGIN, target=TARGET) as writer:
        writer.add_file("config.json", b"old", b"new")
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_refused(record: Bytes) -> None:
    for size in range(record.size):
        with pytest.raises(JournalInvalid):
            parse(record[:size])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_flipped_bit_is_refused(record: Bytes, data: st.DataObject) -> None:
    damaged = bytearray(record)
    damaged[data.draw(st.integers(0, record.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(JournalInvalid):
        parse(damaged)


@given(st.binary(max_size=200))
def test_no_other_bytes_are_a_record(data: bytes) -> None:
    with pytest.raises(JournalInvalid):
        parse(data)


def forged(record: Bytes, change: Callable[[dict[str, list[list[object]]]], object]) -> bytes:
    """Rewrite the footer and seal the record again, as somebody hostile would."""
    data = bytes(record)
    (length,) = struct.unpack("<Q", data[-40:-32])
    footer = json.loads(data[-40 - length : -40])
    change(footer)
    text = json.dumps(footer, sort_keys=True, separators=(",", ":")).encode()
    content = data[: -40 - length] + text + struct.pack("<Q", len(text))
    return content + bytes.fromhex(digest_bytes(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["tensors"].append(["embed", 1, 1]),
        lambda f: f["tensors"].append(["nobody", 1, 1]),
        lambda f: f["tensors"][0].__setitem__(1, 2**62),
        lambda f: f["tensors"][0].__setitem__(1, 0),
        lambda f: f["tensors"][0].__setitem__(1, 2),
        lambda f: f["tensors"][0].__setitem__(2, 2),
        lambda f: f["tensors"].pop(),
        lambda f: f["tensors"].reverse(),
        lambda f: f["files"].append(["config.json", 0, 0]),
        lambda f: f["files"][0].__setitem__(0, "../escape"),
        lambda f: f["files"][0].__setitem__(2, 2**63),
        lambda f: f["files"][0].__setitem__(2, 1000),
        lambda f: f["files"][0].__setitem__(1, -1),
        lambda f: f.__setitem__("to", None),
        lambda f: f.__setitem__("run", "short"),
        lambda f: f.__setitem__("more", 1),
        lambda f: f.pop("from"),
    ],
)
def test_a_forged_footer_is_refused(
    record: Bytes, change: Callable[[dict[str, list[list[object]]]], object]
) -> None:
    with pytest.raises(JournalInvalid):
        parse(forged(record, change))


@pytest.mark.parametrize("positions", [[5, 0, 9], [0, 0, 9], [0, 5, 4096]])
def test_positions_that_do_not_ascend_within_the_tensor_are_refused(
    tmp_path: Path, positions: list[int]
) -> None:
    changes = changes_of("block.weight", [0, 5, 9])
    lying = TensorChanges(
        spec=changes.spec, positions=np.array(positions), old=changes.old, new=changes.new
    )
    with JournalWriter(tmp_path / "install", run=RUN, origin=ORIGIN, target=TARGET) as writer:
        writer.add_tensor(lying, {0: Digest("0" * 64)})
        writer.finish()
    with pytest.raises(JournalInvalid, match="not ascending below 4096"):
        Journal.open(tmp_path / "install", SNAPSHOT.layout)


def test_a_leaf_that_no_position_touches_is_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "install", run=RUN, origin=ORIGIN, target=TARGET) as writer:
        writer.add_tensor(changes_of("block.weight", [0]), {1: Digest("0" * 64)})
        writer.finish()
    with pytest.raises(JournalInvalid, match="leaf numbers"):
        Journal.open(tmp_path / "install", SNAPSHOT.layout)


@given(
    st.builds(
        Marker,
        run=st.just(RUN),
        held=st.none() | st.builds(Held, version=st.integers(0, 2**62), layout=st.just(RUN),
                                   weights=st.just(RUN)),
    )
)  # fmt: skip
def test_a_marker_round_trips(marker: Marker) -> None:
    assert Marker.from_bytes(marker.to_bytes()) == marker
