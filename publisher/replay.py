"""The bulletin's objects, replayed into buffers: a full version, then patches in place.

Nothing here trusts a result: callers measure the buffers and compare with the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Full, ObjectRef
from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.errors import BaseMismatch, FormatError, ResultMismatch
from skerry.codec.fold import apply_pack
from skerry.codec.layout import Layout, SideFile
from skerry.codec.pack import Pack
from skerry.codec.tensors import Read
from skerry.publisher.progress import Meter


def reads(buffers: Mapping[str, Bytes]) -> Read:
    """Return what gives a tensor's bytes as a view of its shard's buffer."""
    return lambda spec: buffers[spec.file][spec.offset : spec.offset + spec.nbytes]


def load_full(
    reader: BulletinReader, layout: Layout, full: Full, buffers: Mapping[str, Bytes], meter: Meter
) -> None:
    """Read a full version's shards into the buffers of `layout`.  Raises FormatError, Tampered."""
    files = {file.name: file for file in full.files}
    for shard in layout.shards:
        file = files.get(shard.name)
        if file is None or file.size != shard.size:
            found = "no file" if file is None else f"{file.size} bytes"
            raise FormatError(f"{shard.name}: expected {shard.size} bytes, the full has {found}")
        buffer, at = buffers[shard.name], 0
        for piece in reader.pieces(reader.full_file(full, file)):
            buffer[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
            meter.add(len(piece))
        if buffer[: len(shard.header)].tobytes() != shard.header:
            raise FormatError(f"{shard.name}: the header is not the layout's")


def apply_packs(
    reader: BulletinReader,
    layout: Layout,
    packs: Iterable[ObjectRef],
    base: Digest | None,
    buffers: Mapping[str, Bytes],
    meter: Meter,
    *,
    threads: int = 1,
) -> tuple[Pack, ...]:
    """Patch the buffers in place; return the packs, for the side files that they carry.

    Raises BaseMismatch, FormatError, Tampered; the buffers are of no use then.
    """
    read = reads(buffers)
    applied = []
    for ref in packs:
        pack = Pack.parse(reader.read(ref), layout)
        if pack.base != base:
            raise BaseMismatch(expected=pack.base, found=str(base))
        apply_pack(layout, pack, read, threads=threads)
        applied.append(pack)
        meter.add(ref.size)
    return tuple(applied)


def carried_file(packs: Iterable[Pack], side: SideFile) -> bytes:
    """Return the content that the last of `packs` to carry a side file has for it.

    Raises ResultMismatch if it is not what the layout names, or not there.
    """
    found = "nothing in the packs"
    for pack in (pack for pack in packs if side.name in pack.files):
        content = pack.file(side.name, side.size)
        found = digest_bytes(content)
    if found != side.digest:
        raise ResultMismatch(what=side.name, expected=side.digest, found=found)
    return content
