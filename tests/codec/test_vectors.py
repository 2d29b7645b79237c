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
from tests.codec.vectors import DIRECTORY, cases

VECTORS = sorted(DIRECTORY.glob("*.json"))


def as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def load(path: Path) -> tuple[Weights, Weights, dict[str, object]]:
    value = json.loads(path.read_text())
    old = weights_of({n: (t, as_bytes(before)) for n, (t, before, _) in value["tensors"].items()})
    new = old.replace(**{n: as_bytes(after) for n, (_, _, after) in value["tensors"].items()})
    return old, new, value


def test_every_case_has_its_vector() -> None:
    assert {path.stem for path in VECTORS} == set(cases())


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


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
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
    assert a.leaf_checks == b.leaf_checks
    assert len(a.index.profiles) == len(b.index.profiles)
    for tensor in a.chunks.keys() | b.chunks.keys():
        for (x, left), (y, right) in zip(a.chunks[tensor], b.chunks[tensor], strict=True):
            assert (x.start, x.count, x.mode, x.tilt) == (y.start, y.count, y.mode, y.tilt)
            if x.mode is not Mode.PLANES:
                assert left == right
