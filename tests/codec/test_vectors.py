"""Golden packs never change their meaning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from skerry.codec.encode import encode_pack
from skerry.codec.fold import fold_changes
from skerry.codec.index import Mode
from skerry.codec.pack import Pack
from tests.codec.checkpoints import Weights, weights_of
from tests.codec.vectors import DECODE_ONLY, DIRECTORY, cases

pytestmark = pytest.mark.usefixtures("each_kernel")

VECTORS = sorted(DIRECTORY.glob("*.json"))


def as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def load(path: Path) -> tuple[Weights, Weights, dict[str, object]]:
    value = json.loads(path.read_text())
    old = weights_of({n: (t, as_bytes(before)) for n, (t, before, _) in value["tensors"].items()})
    new = old.replace(**{n: as_bytes(after) for n, (_, _, after) in value["tensors"].items()})
    return old, new, value


def test_every_case_has_its_vector() -> None:
    assert {path.stem for path in VECTORS} == set(cases()) | DECODE_ONLY


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_a_golden_pack_gives_its_weights(path: Path) -> None:
    old, new, value = load(path)
    assert old.digest().version() == value["base"]
    assert new.digest().version() == value["result"]
    pack = Pack.parse(bytes.fromhex(str(value["pack"])), old.layout)
    assert pack.base == value["base"]
    files = {name: pack.file(name, 1 << 20).hex() for name in pack.files}
    assert files == value["files"]
    result = {name: bits.copy() for name, bits in old.data.items()}
    for changes in fold_changes(old.layout, [pack], old.read):
        changes.spec.view(result[changes.spec.name])[changes.positions] = changes.new
    for name, bits in result.items():
        assert bits.tobytes() == new.data[name].tobytes()


@pytest.mark.parametrize(
    "path", [path for path in VECTORS if path.stem not in DECODE_ONLY], ids=lambda path: path.stem
)
def test_the_encoder_still_makes_them(path: Path) -> None:
    """Compared past zstd, whose bytes may differ between its releases."""
    old, new, value = load(path)
    files = {name: bytes.fromhex(text) for name, text in dict(value["files"]).items()}  # type: ignore[call-overload]
    made = encode_pack(
        old.layout,
        old.read,
        new.read,
        base=old.digest().version(),
        files=files,
        chunk_words=int(str(value["chunk_words"])),
    )
    a = Pack.parse(made.data, old.layout)
    b = Pack.parse(bytes.fromhex(str(value["pack"])), old.layout)
    assert len(a.index.profiles) == len(b.index.profiles)
    assert a.leaves.keys() == b.leaves.keys()
    for tensor in a.leaves:
        assert a.leaves[tensor].keys() == b.leaves[tensor].keys()
        for leaf in a.leaves[tensor]:
            left, right = a.leaves[tensor][leaf], b.leaves[tensor][leaf]
            assert left.check == right.check
            for x, y in zip(left.chunks, right.chunks, strict=True):
                mine, golden = x.entry, y.entry
                assert (mine.start, mine.count) == (golden.start, golden.count)
                assert (mine.mode, mine.tilt) == (golden.mode, golden.tilt)
                if mine.mode is not Mode.PLANES:
                    assert x.payload == y.payload
