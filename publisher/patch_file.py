"""A patch between two directories as one file, outside any bulletin.

All integers are little-endian.  The file is

    offset  size  field
    0       8     magic, the ASCII bytes SKRYPTCH
    8       4     u32  format version, 1
    12      4     u32  zero
    16      8     u64  L, size of the new layout
    24      8     u64  P, size of the pack
    32      32    BLAKE3 of the old layout's canonical JSON (unpacked)
    64      32    digest of the new weights
    96      L     the new layout in its stored form
    96+L    P     a pack from the old weights (whose digest it holds) to the new
    96+L+P  32    BLAKE3 of every byte before

and ends there.  Old and new layout have the same structure; side files that differ are in the pack.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from skerry.codec.compress import decompress
from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.encode import EncodedPack
from skerry.codec.errors import FormatError, StructureMismatch
from skerry.codec.layout import MAX_LAYOUT_BYTES, Layout, describe_difference
from skerry.codec.level import Level
from skerry.codec.pack import Pack
from skerry.codec.weights import WeightsDigest, digest_weights
from skerry.publisher.checkpoint import Checkpoint
from skerry.publisher.draft import encode, prove
from skerry.publisher.progress import Meter, Progress, silent
from skerry.publisher.threads import thread_count

MAGIC = b"SKRYPTCH"
FORMAT = 1
_HEADER = struct.Struct("<8sIIQQ32s32s")
_SEAL_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchFile:
    """A parsed patch file: sound in itself, not yet compared with any directory."""

    old_layout: Digest
    result: Digest
    layout: Layout
    pack: Pack

    @classmethod
    def parse(cls, data: bytes) -> PatchFile:
        """Read a patch file.  Raises FormatError."""
        if len(data) < _HEADER.size + _SEAL_BYTES:
            raise FormatError(
                f"a patch file has at least {_HEADER.size + _SEAL_BYTES} bytes, found {len(data)}"
            )
        magic, version, zero, layout_size, pack_size, old, result = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise FormatError(f"expected the magic {MAGIC!r}, found {magic!r}", offset=0)
        if version != FORMAT or zero:
            raise FormatError(f"expected patch format {FORMAT}, found {version}", offset=8)
        expected = _HEADER.size + layout_size + pack_size + _SEAL_BYTES
        if len(data) != expected:
            raise FormatError(f"expected {expected} bytes by the header, found {len(data)}")
        body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
        if bytes.fromhex(digest_bytes(body)) != seal:
            raise FormatError("the patch file does not match the digest at its end")
        layout_end = _HEADER.size + layout_size
        layout = Layout.from_bytes(body[_HEADER.size : layout_end])
        return cls(
            old_layout=Digest(old.hex()),
            result=Digest(result.hex()),
            layout=layout,
            pack=Pack.parse(body[layout_end:], layout),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSummary:
    """What a patch file holds, in figures."""

    elements: int
    changed: int
    side_files: int
    patch_bytes: int
    full_bytes: int
    level: Level


class MeasuredCheckpoint:
    """A checkpoint whose weights were hashed: what a patch is made against."""

    def __init__(self, checkpoint: Checkpoint, progress: Progress = silent) -> None:
        self.layout = checkpoint.layout
        self.read = checkpoint.read
        meter = Meter(progress, "digest", checkpoint.layout.nbytes)
        self.weights: WeightsDigest = digest_weights(self.layout, meter.read(checkpoint.read))


def layout_identity(layout: Layout) -> Digest:
    """Return a digest of a layout that does not depend on how it is compressed."""
    return digest_bytes(decompress(layout.to_bytes(), MAX_LAYOUT_BYTES))


def make_patch(
    old: Checkpoint,
    new: Checkpoint,
    progress: Progress = silent,
    *,
    level: Level = Level.DEFAULT,
    threads: int | None = None,
) -> tuple[bytes, PatchSummary]:
    """Return the patch file that leads from `old` to `new`.  Raises StructureMismatch."""
    difference = describe_difference(old.layout, new.layout)
    if difference:
        raise StructureMismatch(f"no patch leads from one to the other: {difference}")
    threads = thread_count(threads)
    base, target = MeasuredCheckpoint(old, progress), MeasuredCheckpoint(new, progress)
    encoded = encode(base, new, target.weights, level=level, threads=threads, progress=progress)
    prove(encoded, base, new, target.weights, threads=threads)
    old.check_unchanged()
    new.check_unchanged()
    data = _assemble(base, target, encoded)
    known = {side.name: side.digest for side in old.layout.side_files}
    return data, PatchSummary(
        elements=new.layout.words,
        changed=encoded.changed,
        side_files=sum(known.get(s.name) != s.digest for s in new.layout.side_files),
        patch_bytes=len(data),
        full_bytes=new.layout.nbytes,
        level=level,
    )


def _assemble(base: MeasuredCheckpoint, target: MeasuredCheckpoint, encoded: EncodedPack) -> bytes:
    layout = target.layout.to_bytes()
    header = _HEADER.pack(
        MAGIC,
        FORMAT,
        0,
        len(layout),
        len(encoded.data),
        bytes.fromhex(layout_identity(base.layout)),
        bytes.fromhex(target.weights.version()),
    )
    body = header + layout + encoded.data
    return body + bytes.fromhex(digest_bytes(body))
