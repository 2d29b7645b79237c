"""One damaged part of a version, read again from the bulletin, and no more than that takes.

Of the full version that the route starts from, the part's own range; of each pack after it the
index, and the chunks that lie in the part.  Neither is checked as a whole: the digest of the result
is known from the mirror's state, and decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from skerry.bulletin.records import ObjectRef
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.errors import ResultMismatch
from skerry.codec.fold import apply_pack
from skerry.codec.layout import Layout
from skerry.codec.pack import HEADER, MAX_INDEX_BYTES, Pack, PackFront, leaf_range
from skerry.codec.tensors import TensorSpec
from skerry.island_agent.plan import Route
from skerry.island_agent.ranges import read_object, sparse


def recover_leaf(
    store: ObjectStore, route: Route, layout: Layout, tensor: int, leaf: int, expected: Digest
) -> bytes:
    """Return the bytes of one leaf of a tensor, a number in the table, as `route` ends with them.

    Memory: the leaf, and of each pack its index and the leaf's chunks.  Raises StoreError,
    FormatError, or ResultMismatch if the objects do not give the expected bytes.
    """
    assert route.anchor is not None
    spec = layout.tensors[tensor]
    start, stop = leaf_range(spec, leaf)
    file = next(file for file in route.anchor.full.files if file.name == spec.file)
    source = route.anchor.full.ref(file)
    buffer = sparse(spec.nbytes)  # of which the pages of one leaf are ever touched
    read_object(store, source.key, spec.offset + start, buffer[start:stop])

    def of(wanted: TensorSpec) -> Bytes:
        assert wanted is spec
        return buffer

    for ref in route.packs:
        read = _SparsePack(store, ref, layout)
        packed = read.pack.leaves.get(tensor, {}).get(leaf)
        if packed is not None:
            read.load([chunk.payload for chunk in packed.chunks])
            apply_pack(layout, replace(read.pack, leaves={tensor: {leaf: packed}}), of)
    found = digest_bytes(buffer[start:stop])
    if found != expected:
        what = f"leaf {leaf} of {spec.name}, read again,"
        raise ResultMismatch(what=what, expected=expected, found=found)
    return buffer[start:stop].tobytes()


def recover_file(
    store: ObjectStore, route: Route, layout: Layout, name: str, size: int, expected: Digest
) -> bytes:
    """Return a side file: from the last pack that carries it, or from the full version.

    Raises as `recover_leaf` does.
    """
    assert route.anchor is not None
    for ref in reversed(route.packs):
        read = _SparsePack(store, ref, layout)
        if name in read.pack.files:
            read.load(read.pack.stored_files)
            return _checked(name, read.pack.file(name, size), expected)
    for file in route.anchor.full.files:
        if file.name == name:
            key = route.anchor.full.ref(file).key
            return _checked(name, store.get(key, limit_bytes=size), expected)
    raise ResultMismatch(what=name, expected=expected, found="nothing on the way to it")


def _checked(name: str, content: bytes, expected: Digest) -> bytes:
    found = digest_bytes(content)
    if found != expected:
        raise ResultMismatch(what=name, expected=expected, found=found)
    return content


class _SparsePack:
    """A pack of which the index is read at once, and payloads when they are asked for."""

    def __init__(self, store: ObjectStore, ref: ObjectRef, layout: Layout) -> None:
        self._store = store
        self._ref = ref
        self._bytes = sparse(ref.size)
        self._load(0, min(HEADER.size, ref.size))
        most = min(ref.size, HEADER.size + MAX_INDEX_BYTES)
        self._load(HEADER.size, PackFront.size(self._bytes.data, most))
        self.pack = Pack.parse(self._bytes.data, layout)

    def load(self, parts: Sequence[memoryview]) -> None:
        """Read the given parts of the pack, which lie side by side."""
        spans = [self._span(part) for part in parts if len(part)]
        if spans:
            self._load(min(start for start, _ in spans), max(stop for _, stop in spans))

    def _span(self, part: memoryview) -> tuple[int, int]:
        address = np.frombuffer(part, np.uint8).ctypes.data
        start = address - self._bytes.ctypes.data
        return start, start + len(part)

    def _load(self, start: int, stop: int) -> None:
        read_object(self._store, self._ref.key, start, self._bytes[start:stop])
