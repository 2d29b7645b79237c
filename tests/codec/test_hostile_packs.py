"""Whatever bytes are called a pack, decoding ends, in bounded memory, in a result or a refusal."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.compress import compress
from skerry.codec.digest import Digest
from skerry.codec.encode import encode_pack
from skerry.codec.errors import CodecError, FormatError, LimitExceeded
from skerry.codec.fold import fold_changes
from skerry.codec.index import ChunkEntry, Mode, PackIndex, write_index
from skerry.codec.magnitudes import MAX_SYMBOLS, MagnitudeTable
from skerry.codec.pack import HEADER, MAGIC, Pack
from skerry.codec.profile import Profile
from skerry.codec.rates import TOTAL
from tests.codec.checkpoints import Weights, mutate, random_bytes, weights_of

pytestmark = pytest.mark.usefixtures("each_kernel")

WORDS = 1500


def small() -> tuple[Weights, bytes]:
    rng = np.random.default_rng(11)
    old = weights_of(
        {
            "a": ("BF16", random_bytes(rng, "BF16", WORDS, True)),
            "b": ("F8_E4M3", random_bytes(rng, "F8_E4M3", WORDS, True)),
            "c": ("F32", random_bytes(rng, "F32", 16, True)),
        }
    )
    new = old.replace(
        a=mutate(rng, old.data["a"], "BF16", 0.02, True),
        b=mutate(rng, old.data["b"], "F8_E4M3", 0.05, False),
        c=mutate(rng, old.data["c"], "F32", 1.0, False),
    )
    pack = encode_pack(
        old.layout, old.read, new.read, base=old.digest().version(), files={"f": b"text"}
    )
    return old, pack.data


BASE, GOOD = small()


def decode(data: bytes, base: Weights = BASE) -> list[tuple[str, bytes, bytes]]:
    pack = Pack.parse(data, base.layout)
    for name in pack.files:
        pack.file(name, 1 << 20)
    return [
        (changes.spec.name, changes.positions.tobytes(), changes.new.tobytes())
        for changes in fold_changes(base.layout, [pack], base.read)
    ]


def test_the_sound_pack_decodes() -> None:
    decode(GOOD)


def test_every_truncation_is_refused() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(CodecError):
            decode(GOOD[:size])


def test_every_byte_that_is_added_is_refused() -> None:
    for extra in (b"\0", b"x", GOOD):
        with pytest.raises(FormatError):
            decode(GOOD + extra)


def test_no_flipped_bit_gives_other_weights() -> None:
    """Refused, or without effect on weights.

    Flips in the base's digest and in files are for the caller to find, who knows both digests.
    """
    sound = decode(GOOD)
    harmless = 0
    for at in range(len(GOOD)):
        data = bytearray(GOOD)
        data[at] ^= 1 << at % 8
        with contextlib.suppress(CodecError):
            assert decode(bytes(data)) == sound
            harmless += 1
    assert harmless < 50  # the digest's 32 bytes, and little else


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_of_any_kind_is_a_codec_error(data: st.DataObject) -> None:
    mutated = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(mutated)))
        stop = data.draw(st.integers(start, min(len(mutated), start + 24)))
        mutated[start:stop] = data.draw(st.binary(max_size=24))
    with contextlib.suppress(CodecError):
        decode(bytes(mutated))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_index_and_payload_is_decoded_or_refused(data: st.DataObject) -> None:
    """Past the outer frame: payload bytes of every kind under a well-formed index."""
    rates = np.full(256, 255, np.int64)
    classes = data.draw(st.lists(st.integers(0, 255), max_size=40, unique=True))
    for c in classes:
        rates[c] = data.draw(st.integers(0, 107))
    profile = Profile(rates=rates, table_of=np.zeros(256, np.int64), tables=())
    payload = data.draw(st.binary(max_size=64))
    index = PackIndex(
        chunk_words=1 << 20,
        profiles=(profile,),
        chunks=(
            ChunkEntry(
                tensor=0,
                start=0,
                count=WORDS,
                mode=data.draw(st.sampled_from(Mode)),
                tilt=0,
                size=len(payload),
            ),
        ),
        files=(),
    )
    with contextlib.suppress(CodecError):
        decode(frame(index, bytes(4) + payload))


def frame(index: PackIndex, rest: bytes, base: Weights = BASE) -> bytes:
    stored = compress(write_index(index, base.layout.tensors))
    return HEADER.pack(MAGIC, 1, len(stored), bytes(32)) + stored + rest


def entry(**changes: int) -> ChunkEntry:
    values = {"tensor": 0, "start": 0, "count": 8, "size": 16} | changes
    return ChunkEntry(mode=Mode.RAW, **values)


@pytest.mark.parametrize(
    ("chunks", "rule"),
    [
        ([entry(count=WORDS + 1)], "words of a tensor of"),
        ([entry(start=WORDS)], "words of a tensor of"),
        ([entry(start=2**61)], "words of a tensor of"),
        ([entry(count=0, size=0)], "0 words of a tensor"),
        ([entry(size=0)], "0 bytes for 8 words"),
        ([entry(size=193)], "193 bytes for 8 words"),
        ([entry(), entry()], "overlaps"),
        ([entry(), entry(start=4)], "overlaps"),
        ([entry(start=8), entry(start=0)], "overlaps"),
        ([entry(tensor=1), entry(tensor=1, start=1)], "overlaps"),
    ],
)
def test_chunks_that_overlap_repeat_or_reach_out_are_refused(
    chunks: list[ChunkEntry], rule: str
) -> None:
    index = PackIndex(chunk_words=1 << 20, profiles=(), chunks=tuple(chunks), files=())
    with pytest.raises(FormatError, match=rule):
        Pack.parse(frame(index, bytes(4 + 16 * len(chunks))), BASE.layout)


def test_an_index_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = compress(bytes(300_000_000))
    data = HEADER.pack(MAGIC, 1, len(bomb), bytes(32)) + bomb
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="the limit is"):
            Pack.parse(data, BASE.layout)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_patch_for_other_weights_fails_its_leaf_checks() -> None:
    rng = np.random.default_rng(12)
    other = BASE.replace(a=mutate(rng, BASE.data["a"], "BF16", 0.01, True))
    with pytest.raises(CodecError):
        decode(GOOD, other)


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_other_formats_are_named(version: int) -> None:
    data = GOOD[:8] + struct.pack("<I", version) + GOOD[12:]
    with pytest.raises(FormatError, match=f"pack format 1 expected, found {version}"):
        Pack.parse(data, BASE.layout)


def test_a_base_digest_is_hex_of_the_header() -> None:
    assert Pack.parse(GOOD, BASE.layout).base == Digest(GOOD[16:48].hex())


def test_magnitude_tables_that_would_fill_the_memory_are_refused() -> None:
    """A zero run is a few bytes: 1,024 profiles of 32 tables could be gigabytes of zeros."""
    frequencies = np.zeros(MAX_SYMBOLS, np.uint16)
    frequencies[-1] = TOTAL
    tables = (MagnitudeTable(precision=0, frequencies=frequencies),) * 32
    rates, table_of = np.full(256, 255, np.int64), np.zeros(256, np.int64)
    rates[0], table_of[0] = 24, 1
    profile = Profile(rates=rates, table_of=table_of, tables=tables)
    index = PackIndex(chunk_words=1 << 20, profiles=(profile,) * 33, chunks=(), files=())
    data = frame(index, b"")
    assert len(data) < 20_000
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="symbols"):
            Pack.parse(data, BASE.layout)
        assert tracemalloc.get_traced_memory()[1] < 64_000_000
    finally:
        tracemalloc.stop()


def test_more_chunks_than_bytes_to_hold_them_are_refused_before_they_are_read() -> None:
    index = bytes([0, 0]) + bytes([0x80, 0x89, 0x7A]) + bytes(8 * 2_000_000)
    stored = compress(index)
    assert len(stored) < 2000
    with pytest.raises(LimitExceeded, match="2000000 chunks"):
        Pack.parse(HEADER.pack(MAGIC, 1, len(stored), bytes(32)) + stored, BASE.layout)
