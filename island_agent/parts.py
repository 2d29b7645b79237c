"""What a mirror consists of, in pieces that have a digest each: leaves, headers, side files.

A piece is a `Part` here; `selection.Part` is what a partial mirror holds of a version.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skerry.codec.digest import Digest, DigestStream, digest_bytes
from skerry.codec.layout import Layout
from skerry.codec.pack import leaf_range
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.selection import Part as MirroredPart

_BLOCK_BYTES = 1024 * 1024

Kind = Literal["leaf", "header", "side file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartName:
    """A part, whatever the version: `tensor` and `leaf` are numbers, -1 for what is no leaf."""

    kind: Kind
    file: str
    tensor: int = -1
    leaf: int = -1

    def __str__(self) -> str:
        if self.kind == "leaf":
            return f"{self.file}: leaf {self.leaf} of tensor number {self.tensor}"
        return f"{self.file}: {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes [start, stop) of a file of `size` bytes, and their digest."""

    name: PartName
    start: int
    stop: int
    size: int
    digest: Digest

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


def parts_of(
    layout: Layout, weights: WeightsDigest, mirrored: MirroredPart | None = None
) -> Sequence[Part]:
    """Return every part of a version; together they are all bytes of all its files.

    Of a partial mirror only the leaves that it holds: of the others there are only holes.
    """
    sizes = dict(layout.files())
    found = [
        Part(
            name=PartName(kind="header", file=shard.name),
            start=0,
            stop=len(shard.header),
            size=shard.size,
            digest=digest_bytes(shard.header),
        )
        for shard in layout.shards
    ]
    found += [
        Part(
            name=PartName(kind="side file", file=side.name),
            start=0,
            stop=side.size,
            size=side.size,
            digest=side.digest,
        )
        for side in layout.side_files
    ]
    for number, (spec, leaves) in enumerate(zip(weights.tensors, weights.leaves, strict=True)):
        for leaf, digest in enumerate(leaves):
            if mirrored is not None and leaf not in mirrored.leaves[number]:
                continue
            start, stop = leaf_range(spec, leaf)
            found.append(
                Part(
                    name=PartName(kind="leaf", file=spec.file, tensor=number, leaf=leaf),
                    start=spec.offset + start,
                    stop=spec.offset + stop,
                    size=sizes[spec.file],
                    digest=digest,
                )
            )
    return found


def take(parts: Sequence[Part], first: int, most_bytes: int) -> Sequence[Part]:
    """Return parts from number `first` on, around the end, of `most_bytes` together or one."""
    taken: list[Part] = []
    total = 0
    for number in range(len(parts)):
        part = parts[(first + number) % len(parts)]
        if taken and total + part.nbytes > most_bytes:
            break
        taken.append(part)
        total += part.nbytes
    return taken


def is_damage(error: OSError) -> bool:
    """Say whether an error means that the bytes of a file are lost, or something else lies there.

    A process that ran out of descriptors or memory has not looked.
    """
    changed = FileNotFoundError | NotADirectoryError | IsADirectoryError  # what a wrong size is too
    return isinstance(error, changed) or error.errno in (errno.EIO, errno.ELOOP)


def digest_part(directory: Path, part: Part, gone_on: Callable[[], bool]) -> Digest | None:
    """Hash a part as it lies in its file; None as soon as `gone_on` says that nobody asks any more.

    Read, not mapped, in blocks of 1 MiB on one thread.  Raises OSError (also EIO of a bad sector),
    and FileNotFoundError too when the file is no plain file or not of its size.
    """
    stream = DigestStream(threads=1)
    fd = os.open(directory / part.name.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size != part.size:
            raise FileNotFoundError(f"{part.name.file}: expected {part.size} bytes")
        at = part.start
        while at < part.stop:
            if gone_on():
                return None
            block = os.pread(fd, min(_BLOCK_BYTES, part.stop - at), at)
            if not block:
                raise FileNotFoundError(f"{part.name.file}: ends at byte {at}")
            stream.update(block)
            at += len(block)
    finally:
        os.close(fd)
    return stream.digest()
