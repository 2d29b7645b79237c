"""A pack turns exactly its base into exactly its result, whatever the bits are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.digest import Digest
from skerry.codec.dtypes import DTYPES
from skerry.codec.encode import EncodedPack, encode_pack
from skerry.codec.errors import StructureMismatch
from skerry.codec.fold import apply_pack, fold_changes, fold_packs
from skerry.codec.index import Mode
from skerry.codec.pack import Pack
from skerry.codec.scan import CHUNK_WORDS
from tests.codec.checkpoints import (
    Weights,
    mutate,
    pairs,
    patched_leaves,
    random_bytes,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("each_kernel")

CHUNK = 1 << 9


def encode(old: Weights, new: Weights, chunk_words: int = CHUNK) -> EncodedPack:
    return encode_pack(
        old.layout, old.read, new.read, base=old.digest().version(), chunk_words=chunk_words
    )


def rebuild(old: Weights, *packs: bytes) -> Weights:
    parsed = [Pack.parse(pack, old.layout) for pack in packs]
    data = {name: bits.copy() for name, bits in old.data.items()}
    for changes in fold_changes(old.layout, parsed, old.read):
        words = changes.spec.view(data[changes.spec.name])
        assert np.array_equal(words[changes.positions], changes.old)
        words[changes.positions] = changes.new
    return old.replace(**data)


def same(a: Weights, b: Weights) -> bool:
    return all(a.data[name].tobytes() == b.data[name].tobytes() for name in a.data)


@settings(deadline=None, max_examples=120)
@given(pairs(CHUNK))
def test_rebuilds_any_weights_bit_for_bit(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    pack = encode(old, new)
    assert same(rebuild(old, pack.data), new)
    assert old.digest().replace(pack.leaves).version() == new.digest().version()
    changed = sum(
        int((spec.view(old.read(spec)) != spec.view(new.read(spec))).sum())
        for spec in old.layout.tensors
    )
    assert pack.changed == changed
    buffers = {name: bits.copy() for name, bits in old.data.items()}
    parsed = Pack.parse(pack.data, old.layout)
    assert apply_pack(old.layout, parsed, lambda spec: buffers[spec.name]) == changed
    assert same(old.replace(**buffers), new)


@settings(deadline=None, max_examples=60)
@given(pairs(CHUNK), st.integers(0, 2**32))
def test_a_fold_of_patches_is_the_direct_difference(
    pair: tuple[Weights, Weights], seed: int
) -> None:
    first, second = pair
    rng = np.random.default_rng(seed)
    types = {spec.name: spec.dtype for spec in first.layout.tensors}
    third = first.replace(
        **{n: mutate(rng, bits, types[n], 0.05, True) for n, bits in second.data.items()}
    )
    # Some words go back to what they were at first: those are no changes.
    for name, bits in third.data.items():
        words = bits.view(DTYPES[types[name]].numpy)
        back = rng.random(words.size) < 0.3
        words[back] = first.data[name].view(words.dtype)[back]
    packs = [encode(first, second).data, encode(second, third).data]
    assert same(rebuild(first, *packs), third)
    folded = fold_changes(
        first.layout, [Pack.parse(pack, first.layout) for pack in packs], first.read
    )
    direct = fold_changes(
        first.layout, [Pack.parse(encode(first, third).data, first.layout)], first.read
    )
    for a, b in zip(folded, direct, strict=True):
        assert a.spec == b.spec
        assert np.array_equal(a.positions, b.positions)
        assert np.array_equal(a.new, b.new)
        assert a.leaves == b.leaves == patched_leaves(first.read(a.spec), b)
    parsed = [Pack.parse(pack, first.layout) for pack in packs]
    skip = fold_packs(first.layout, parsed, first.read)
    assert skip == encode(first, third, CHUNK_WORDS)


@settings(deadline=None, max_examples=40)
@given(pairs(CHUNK))
def test_the_same_input_gives_the_same_bytes(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    assert encode(old, new).data == encode(old, new).data


SPECIAL_BF16 = (
    0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7F81,
)  # fmt: skip


def test_every_transition_among_special_values_is_exact() -> None:
    """E-1: zeros of both signs, subnormals, infinities, two NaNs."""
    old = np.repeat(np.array(SPECIAL_BF16, np.uint16), 12)
    new = np.tile(np.array(SPECIAL_BF16, np.uint16), 12)
    base = weights_of({"w": ("BF16", old.view(np.uint8))})
    result = base.replace(w=new.view(np.uint8))
    pack = encode(base, result)
    assert pack.changed == 132
    assert same(rebuild(base, pack.data), result)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E4M3", "F8_E8M0", "I64"])
def test_full_size_chunks_work_too(dtype: str) -> None:
    rng = np.random.default_rng(7)
    words = (1 << 20) + 12_345
    old = weights_of({"w": (dtype, random_bytes(rng, dtype, words, True))})
    new = old.replace(w=mutate(rng, old.data["w"], dtype, 0.0005, True))
    pack = encode(old, new, 1 << 20)
    assert same(rebuild(old, pack.data), new)


def test_frozen_tensors_cost_nothing() -> None:
    rng = np.random.default_rng(3)
    names = {f"expert{i}": ("BF16", random_bytes(rng, "BF16", 4096, True)) for i in range(64)}
    old = weights_of(names)
    new = old.replace(expert5=mutate(rng, old.data["expert5"], "BF16", 0.01, True))
    pack = Pack.parse(encode(old, new, 4096).data, old.layout)
    assert len(pack.index.chunks) == 1
    assert [len(leaves) for leaves in pack.leaves.values()] == [1]


def test_weights_that_did_not_change_make_an_empty_pack() -> None:
    old = weights_of({"w": ("F32", np.zeros(64, np.uint8))})
    pack = encode(old, old)
    assert pack.changed == 0
    assert not pack.leaves
    assert same(rebuild(old, pack.data), old)


def test_noise_is_stored_raw_and_structure_under_zstd() -> None:
    rng = np.random.default_rng(4)
    zeros = np.zeros(4096, np.uint8)
    old = weights_of({"noise": ("BF16", zeros), "rows": ("BF16", zeros)})
    new = old.replace(
        noise=rng.integers(0, 256, 4096, np.uint8), rows=np.full(4096, 0x3F, np.uint8)
    )
    pack = Pack.parse(encode(old, new, 4096).data, old.layout)
    assert [chunk.mode for chunk in pack.index.chunks] == [Mode.RAW, Mode.PLANES]


def test_files_travel_whole() -> None:
    old = weights_of({"w": ("U8", np.zeros(8, np.uint8))})
    files = {"config.json": b"{}" * 500, "tokenizer/vocab.txt": b""}
    data = encode_pack(
        old.layout, old.read, old.read, base=old.digest().version(), files=files
    ).data
    pack = Pack.parse(data, old.layout)
    assert {name: pack.file(name, 1000) for name in pack.files} == files
    with pytest.raises(KeyError):
        pack.file("other", 1000)


def test_weights_of_another_size_are_refused() -> None:
    old = weights_of({"w": ("U8", np.zeros(8, np.uint8))})
    new = old.replace(w=np.zeros(9, np.uint8))
    with pytest.raises(StructureMismatch, match="w: 8 bytes expected, found 9"):
        encode(old, new)


def test_a_pack_names_its_base() -> None:
    old = weights_of({"w": ("U8", np.zeros(8, np.uint8))})
    base = Digest("ab" * 32)
    data = encode_pack(old.layout, old.read, old.read, base=base).data
    assert Pack.parse(data, old.layout).base == base
