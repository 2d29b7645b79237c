"""Whole packs, damaged: what each kernel makes of one must be what every other makes of it."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from functools import cache

import numpy as np

from skerry.codec import kernel
from skerry.codec.compress import compress, decompress
from skerry.codec.digest import digest_bytes
from skerry.codec.errors import CodecError
from skerry.codec.fold import fold_changes
from skerry.codec.index import parse_index
from skerry.codec.pack import HEADER, LEAF_CHECK_BYTES, Pack, leaf_range, leaves_of
from tests.codec.checkpoints import Weights, weights_of
from tests.codec.independent import decode_all
from tests.codec.vectors import DIRECTORY

Mutate = Callable[[bytes, int], bytes]  # bytes and the most that may come of them, to other bytes

_MOST_FILE_BYTES = 1 << 20
MOST_PACK_BYTES = 1 << 16
_BASE = slice(16, 48)  # the base's digest in a pack's header


@cache
def golden() -> dict[bytes, tuple[Weights, list[bytes]]]:
    """Return the bases of the golden packs by digest, and the packs for each."""
    found: dict[bytes, tuple[Weights, list[bytes]]] = {}
    for path in sorted(DIRECTORY.glob("*.json")):
        value = json.loads(path.read_text())
        tensors = value["tensors"].items()
        base = weights_of(
            {n: (t, np.frombuffer(bytes.fromhex(old), np.uint8)) for n, (t, old, _) in tensors}
        )
        pack = bytes.fromhex(value["pack"])
        found.setdefault(pack[_BASE], (base, []))[1].append(pack)
    return found


def seeds() -> list[bytes]:
    return [pack for _, packs in golden().values() for pack in packs]


def base_of(data: bytes) -> Weights:
    """Return the weights that a pack says it is for; any will do for one that names none."""
    bases = golden()
    if data[_BASE] in bases:
        return bases[data[_BASE]][0]
    return list(bases.values())[sum(data) % len(bases)][0]


def check(data: bytes, base: Weights | None = None) -> bool:
    """Decode by every kernel; all must give the same, or refuse.  Return whether they decoded.

    A pack that decodes is then given the leaf checks of what came out, so that folding accepts it,
    and the decoder that shares no code with ours must agree.
    """
    base = base or base_of(data)
    found = {}
    for name in kernel.available():
        with kernel.using(name):
            found[name] = _decode(data, base)
    new = found.pop("numpy")
    for name, other in found.items():
        assert other == new, f"{name} and numpy differ"
    if new is None:
        return False
    sealed = _sealed(data, base, new)
    folded = {name: bits.copy() for name, bits in base.data.items()}
    for changes in fold_changes(base.layout, [Pack.parse(sealed, base.layout)], base.read):
        changes.spec.view(folded[changes.spec.name])[changes.positions] = changes.new
    assert {name: bits.tobytes() for name, bits in folded.items()} == new
    tensors = [(spec.name, spec.dtype, base.read(spec).tobytes()) for spec in base.layout.tensors]
    assert decode_all(sealed, tensors)[0] == new
    return True


def damaged(data: bytes, rng: random.Random, mutate: Mutate) -> bytes:
    """Return other bytes: changed as they are, or in an index that is packed again."""
    try:
        header, index, rest = _parts(data)
    except CodecError:
        return mutate(data, MOST_PACK_BYTES)
    where = rng.choice(("anywhere", "index", "index", "rest", "rest"))
    if where == "anywhere":
        return mutate(data, MOST_PACK_BYTES)
    if where == "rest":
        return data[: len(data) - len(rest)] + mutate(rest, len(rest) + 64)
    index = mutate(index, len(index) + 64)
    try:
        size = _size_of_rest(index, base_of(data))
    except CodecError:
        size = len(rest)
    # The payloads keep up with the index, or nothing behind its parser would ever be reached.
    rest = (rest + bytes(max(0, min(size, MOST_PACK_BYTES) - len(rest))))[:size]
    stored = compress(index)
    return header[:12] + struct.pack("<I", len(stored)) + header[16:] + stored + rest


def plain_mutation(rng: random.Random) -> Mutate:
    """Return a mutation that knows nothing: bits flip, bytes come, go and repeat."""

    def mutate(data: bytes, most: int) -> bytes:
        out = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(out) + 1)
            match rng.randrange(4):
                case 0 if at < len(out):
                    out[at] ^= 1 << rng.randrange(8)
                case 1 if at < len(out):
                    out[at] = rng.choice((0, 1, 2, 127, 128, 255))
                case 2:
                    del out[at : at + rng.randint(1, 4)]
                case _:
                    out[at:at] = out[max(0, at - 4) : at] or rng.randbytes(2)
        return bytes(out[:most])

    return mutate


def _decode(data: bytes, base: Weights) -> dict[str, bytes] | None:
    """Return every tensor's bytes after the patch, leaf checks aside, or None if it is refused."""
    new = {name: bits.copy() for name, bits in base.data.items()}
    try:
        pack = Pack.parse(data, base.layout)
        for name in pack.files:
            pack.file(name, _MOST_FILE_BYTES)
        for tensor, leaves in pack.leaves.items():
            spec = base.layout.tensors[tensor]
            chunks = [chunk for leaf in leaves.values() for chunk in leaf.chunks]
            slices = [slice(c.entry.start, c.entry.start + c.entry.count) for c in chunks]
            bases = [spec.view(base.read(spec))[words] for words in slices]
            for words, changes in zip(slices, pack.decode(chunks, bases), strict=True):
                positions, bits = changes
                assert (np.diff(positions) > 0).all()
                spec.view(new[spec.name])[words][positions] = bits
    except CodecError:
        return None
    return {name: bits.tobytes() for name, bits in new.items()}


def _sealed(data: bytes, base: Weights, new: dict[str, bytes]) -> bytes:
    """Return the pack with the leaf checks of the weights that it leads to."""
    _, index, rest = _parts(data)
    tensors = base.layout.tensors
    checks = b""
    for tensor, leaf in leaves_of(parse_index(index, tensors).chunks, tensors):
        start, stop = leaf_range(tensors[tensor], leaf)
        content = np.frombuffer(new[tensors[tensor].name][start:stop], np.uint8)
        checks += bytes.fromhex(digest_bytes(content))[:LEAF_CHECK_BYTES]
    return data[: len(data) - len(rest)] + checks + rest[len(checks) :]


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a pack's header, its index unpacked, and the rest.  Raises FormatError."""
    at = HEADER.size + int.from_bytes(data[12:16], "little")
    return data[: HEADER.size], decompress(data[HEADER.size : at], 1 << 20), data[at:]


def _size_of_rest(index: bytes, base: Weights) -> int:
    parsed = parse_index(index, base.layout.tensors)
    leaves = leaves_of(parsed.chunks, base.layout.tensors)
    stored = sum(file.stored for file in parsed.files) + sum(chunk.size for chunk in parsed.chunks)
    return LEAF_CHECK_BYTES * len(leaves) + stored
