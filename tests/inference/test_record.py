"""A weight update in a file: what was written comes back, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.errors import FormatError
from skerry.codec.tensors import TensorChanges, TensorSpec
from skerry.inference.engine import WeightUpdate
from skerry.inference.exchange import Exchange
from skerry.inference.record import parse_record, pieces


def _changes(name: str, dtype: str, words: int, chosen: set[int], seed: int) -> TensorChanges:
    random = np.random.default_rng(seed)
    spec = TensorSpec(name=name, dtype=dtype, shape=(words,), file="", offset=0, nbytes=0)
    spec = dataclasses.replace(spec, nbytes=words * spec.type.word)
    positions = np.array(sorted(chosen), np.int64)
    bits = random.integers(0, 2 ** (8 * spec.type.word), (2, positions.size), np.uint64)
    old, new = bits.astype(spec.type.numpy)
    return TensorChanges(spec=spec, positions=positions, old=old, new=new)


@st.composite
def updates(draw: st.DrawFn) -> WeightUpdate:
    names = draw(st.lists(st.text("ab.é", min_size=1, max_size=8), unique=True, max_size=4))
    changes = []
    for name in names:
        dtype = draw(st.sampled_from(["BF16", "F8_E4M3", "F32", "I64"]))
        words = draw(st.integers(1, 40))
        chosen = draw(st.sets(st.integers(0, words - 1)))
        changes.append(_changes(name, dtype, words, chosen, draw(st.integers(0, 99))))
    return WeightUpdate(
        base=draw(st.integers(0, 9)),
        version=draw(st.integers(0, 2**63 - 1)),
        digest=Digest("ab" * 32),
        changes=changes,
    )


def written(update: WeightUpdate) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(bytes(piece) for piece in pieces(update)), np.uint8)


@given(updates())
def test_an_update_comes_back_as_it_was(update: WeightUpdate) -> None:
    found = parse_record(written(update))
    assert (found.base, found.version, found.digest) == (
        update.base, update.version, update.digest,
    )  # fmt: skip
    assert len(found.changes) == len(update.changes)
    for a, b in zip(update.changes, found.changes, strict=True):
        assert (a.spec.name, a.spec.dtype, a.spec.shape) == (
            b.spec.name,
            b.spec.dtype,
            b.spec.shape,
        )
        for x, y in ((a.positions, b.positions), (a.old, b.old), (a.new, b.new)):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


@settings(max_examples=200)
@given(updates(), st.data())
def test_a_record_with_any_byte_changed_or_missing_is_refused(
    update: WeightUpdate, data: st.DataObject
) -> None:
    good = written(update)
    at = data.draw(st.integers(0, good.size - 1))
    bad = good.copy()
    bad[at] ^= data.draw(st.integers(1, 255))
    for wrong in (bad, good[:at], np.append(good, np.uint8(0))):
        with pytest.raises(FormatError):
            parse_record(wrong)


def _sealed(content: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(content + bytes.fromhex(digest_bytes(content)), np.uint8)


@pytest.mark.parametrize(
    ("found", "claimed"),
    [
        (b'["a","BF16",[4],2]', b'["a","BF16",[4],9]'),
        (b'["a","BF16",[4],2]', b'["a","BF16",[9],2]'),
        (b'["a","BF16",[4],2]', b'["a","XX16",[4],2]'),
        (b'["a","BF16",[4],2]', b'["","BF16",[44],2]'),
        (b'"version":1', b'"version":-'),
        (b'"base":0', b'"case":0'),
    ],
)
def test_a_header_that_lies_is_refused_although_it_is_sealed(found: bytes, claimed: bytes) -> None:
    update = WeightUpdate(
        base=0,
        version=1,
        digest=Digest("ab" * 32),
        changes=[_changes("a", "BF16", 4, {1, 2}, 0)],
    )
    content = written(update).tobytes()[:-32]
    assert found in content
    if claimed == b'["a","BF16",[9],2]':  # is no lie that a record could be caught at
        assert parse_record(_sealed(content.replace(found, claimed))).changes[0].spec.words == 9
        return
    with pytest.raises(FormatError):
        parse_record(_sealed(content.replace(found, claimed)))


def test_positions_that_do_not_ascend_are_refused() -> None:
    changes = _changes("a", "BF16", 8, {1, 2}, 0)
    for positions in ([2, 1], [1, 1], [-1, 1], [1, 8]):
        forged = dataclasses.replace(changes, positions=np.array(positions, np.int64))
        update = WeightUpdate(base=0, version=1, digest=Digest("ab" * 32), changes=[forged])
        with pytest.raises(FormatError):
            parse_record(written(update))


def test_both_sides_of_an_exchange_know_one_token_whoever_comes_first(tmp_path: Path) -> None:
    root = tmp_path / "exchange"
    tokens = {Exchange.open(root).token() for _ in range(3)}
    assert len(tokens) == 1
    assert (root / "token").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["../token", "a" * 63, "A" * 64, "", "/etc/passwd"])
def test_a_name_that_is_no_digest_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError):
        Exchange.open(tmp_path / "exchange").get(name)


def test_a_dropped_record_is_still_there_for_whoever_has_it_mapped(tmp_path: Path) -> None:
    exchange = Exchange.open(tmp_path / "exchange")
    update = WeightUpdate(
        base=0, version=1, digest=Digest("ab" * 32), changes=[_changes("a", "F32", 9, {3, 7}, 1)]
    )
    name = exchange.put(update)
    found = exchange.get(name)
    exchange.drop()
    np.testing.assert_array_equal(found.changes[0].new, update.changes[0].new)
    with pytest.raises(FileNotFoundError):
        exchange.get(name)
