"""What encoding asks its caller for, when, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from skerry.codec.digest import LEAF_BYTES, Bytes, Digest
from skerry.codec.encode import ScannedChunk, encode_pack, encode_scanned, scan_chunk
from skerry.codec.level import Level
from skerry.codec.scan import CHUNK_WORDS
from skerry.codec.tensors import Read, TensorSpec
from tests.codec.checkpoints import Weights, weights_of


def two_leaves_and_one() -> tuple[Weights, Weights]:
    """Return versions that differ in both leaves of one tensor and in the only one of another."""
    old = weights_of(
        {
            "a": ("BF16", np.zeros(LEAF_BYTES + 4096, np.uint8)),
            "b": ("F32", np.zeros(64, np.uint8)),
            "c": ("BF16", np.zeros(64, np.uint8)),
        }
    )
    a, b = old.data["a"].copy(), old.data["b"].copy()
    a[[0, -1]] = b[0] = 1
    return old, old.replace(a=a, b=b)


def counted(weights: Weights) -> tuple[Read, Counter[str]]:
    """Return what reads these weights, and how often it did by tensor."""
    reads: Counter[str] = Counter()

    def read(spec: TensorSpec) -> Bytes:
        reads[spec.name] += 1
        return weights.read(spec)

    return read, reads


def test_a_tensor_that_changed_is_read_once_more_for_all_its_leaves() -> None:
    old, new = two_leaves_and_one()
    read, reads = counted(new)
    pack = encode_pack(old.layout, old.read, read, base=old.digest().version())
    assert reads == {"a": 2, "b": 2, "c": 1}
    assert old.digest().replace(pack.leaves) == new.digest()


def test_digests_that_are_known_are_not_computed_again() -> None:
    old, new = two_leaves_and_one()
    read, reads = counted(new)
    base = old.digest().version()
    known = encode_pack(old.layout, old.read, read, base=base, digests=new.digest())
    assert reads == {"a": 1, "b": 1, "c": 1}
    assert known == encode_pack(old.layout, old.read, new.read, base=base)


def test_digests_are_asked_for_in_order_once_all_chunks_were_taken() -> None:
    old, new = two_leaves_and_one()
    digests = new.digest()
    happened: list[object] = []

    def chunks() -> Iterator[ScannedChunk]:
        for number, spec in enumerate(old.layout.tensors):
            before, after = spec.view(old.data[spec.name]), spec.view(new.data[spec.name])
            for start in range(0, spec.words, CHUNK_WORDS):
                part = slice(start, start + CHUNK_WORDS)
                chunk = scan_chunk(
                    number, start, before[part], after[part], spec.type, Level.DEFAULT
                )
                if chunk is not None:
                    yield chunk
        happened.append("all chunks taken")

    def digest_of(tensor: int, leaf: int) -> Digest:
        happened.append((old.layout.tensors[tensor].name, leaf))
        return digests.leaf(tensor, leaf)

    base = old.digest().version()
    pack = encode_scanned(old.layout, chunks(), digest_of, base=base)
    assert happened == ["all chunks taken", ("a", 0), ("a", 1), ("b", 0)]
    assert old.digest().replace(pack.leaves) == digests
