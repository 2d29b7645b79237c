"""Digests depend on the weights and on nothing else."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from blake3 import blake3

from skerry.codec.digest import (
    LEAF_BYTES,
    DigestStream,
    digest_bytes,
    leaf_count,
    leaf_digests,
    tensor_digest,
    version_digest,
)
from skerry.codec.errors import FormatError
from skerry.codec.weights import WeightsDigest
from tests.codec.checkpoints import weights_of


def test_the_digest_of_an_object_is_plain_blake3() -> None:
    assert digest_bytes(b"abc") == blake3(b"abc").hexdigest()
    stream = DigestStream()
    for part in (b"a", bytearray(b"b"), memoryview(b"c"), np.zeros(0, np.uint8)):
        stream.update(part)
    assert stream.digest() == digest_bytes(b"abc")
    assert stream.size == 3


def test_leaves_are_cut_every_16_mib_of_a_tensor() -> None:
    data = np.arange(LEAF_BYTES + 5, dtype=np.uint64).astype(np.uint8)
    assert leaf_digests(data) == (
        digest_bytes(data[:LEAF_BYTES].tobytes()),
        digest_bytes(data[LEAF_BYTES:].tobytes()),
    )
    assert [leaf_count(n) for n in (0, 1, LEAF_BYTES, LEAF_BYTES + 1)] == [0, 1, 1, 2]


def test_a_tensor_digest_is_what_the_document_says() -> None:
    leaf = digest_bytes(b"leaf")
    fields = [b"w", b"BF16", struct.pack("<2Q", 2, 3), bytes.fromhex(leaf)]
    expected = blake3(b"".join(struct.pack("<Q", len(f)) + f for f in fields)).hexdigest()
    assert tensor_digest("w", "BF16", (2, 3), [leaf]) == expected


def test_fields_cannot_run_into_each_other() -> None:
    leaf = digest_bytes(b"")
    digests = {
        tensor_digest("w", "F8_E4M3", (), []),
        tensor_digest("wF", "8_E4M3", (), []),
        tensor_digest("w", "F8_E4M3", (0,), []),
        tensor_digest("w", "F8_E4M3", (), [leaf]),
    }
    assert len(digests) == 4


def test_a_version_is_ordered_by_utf8_bytes() -> None:
    a, b = digest_bytes(b"1"), digest_bytes(b"2")
    joined = blake3(bytes.fromhex(a) + bytes.fromhex(b)).hexdigest()
    assert version_digest({"\U0001f600": b, "\uffff": a}) == joined


def test_leaf_digests_are_kept_and_replaced_by_tensor_and_number() -> None:
    weights = weights_of(
        {"a": ("U8", np.zeros(10, np.uint8)), "none": ("U8", np.zeros(0, np.uint8))}
    )
    digest = weights.digest()
    assert WeightsDigest.from_bytes(digest.to_bytes(), weights.layout) == digest
    changed = weights.replace(a=np.ones(10, np.uint8))
    leaf = digest_bytes(np.ones(10, np.uint8))
    assert digest.replace({"a": {0: leaf}}) == changed.digest()
    with pytest.raises(KeyError, match="other"):
        digest.replace({"other": {0: leaf}})
    with pytest.raises(FormatError, match="1 leaf digests expected"):
        WeightsDigest.from_bytes(
            weights_of({"b": ("U8", np.zeros(0, np.uint8))}).digest().to_bytes(), weights.layout
        )
