"""Scan and pack weights where they live: on a GPU only what changed leaves the device.

The operations are torch's own and run on CPU, CUDA and ROCm alike; the result is that of
`skerry.codec.encode`, byte for byte.  Weights that are in host memory anyway belong there: its
native kernel needs no sort.

Words are handled as *signed* integers of their width, which torch has for every width.  On these a
step needs no wider arithmetic: the difference of two ordinals, wrapped to the width, is the step,
and its sign is the direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.dtypes import DType, Words
from skerry.codec.encode import (
    EncodedPack,
    ScannedChunk,
    encode_scanned,
    may_be_dense,
    scan_chunk,
)
from skerry.codec.errors import StructureMismatch
from skerry.codec.layout import Layout
from skerry.codec.level import Level
from skerry.codec.pack import leaf_range
from skerry.codec.scan import CHUNK_WORDS, CLASSES, ChunkDiff
from skerry.codec.tensors import TensorSpec
from skerry.codec.weights import WeightsDigest

# Chunks that one sequence of launches scans, at most 256.  It bounds the device's memory, which for
# full chunks was 160 MB on the CPU where 5 % changed and 560 MB where all did.
BAND_CHUNKS = 8
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a word


def encode_on_device(
    layout: Layout,
    old: Mapping[str, torch.Tensor],
    new: Mapping[str, torch.Tensor],
    *,
    base: Digest,
    files: Mapping[str, bytes] | None = None,
    chunk_words: int = CHUNK_WORDS,
    level: Level = Level.DEFAULT,
    threads: int = 1,
    digests: WeightsDigest | None = None,
) -> EncodedPack:
    """Return the pack that `encode_pack` makes of the same weights.

    `old` and `new` hold every tensor of the layout in served precision, each pair on one device;
    devices may differ from tensor to tensor.  They must not change meanwhile;
    `skerry.trainer.device_publisher` keeps those of the version before.

    `digests` are those of `new`.  Without them every leaf that changed (16 MiB of a tensor) is
    copied to the host and hashed there, which for scattered changes is all of the weights.
    Raises StructureMismatch if a tensor is missing or of another size.
    """

    def chunks() -> Iterator[ScannedChunk]:
        for number, spec in enumerate(layout.tensors):
            before, after = _named(spec, old), _named(spec, new)
            yield from scan_on_device(
                before, after, spec.type, level, tensor=number, chunk_words=chunk_words
            )

    def hash_leaf(tensor: int, leaf: int) -> Digest:
        spec = layout.tensors[tensor]
        start, stop = (at // spec.type.word for at in leaf_range(spec, leaf))
        words = _as_words(_named(spec, new), spec.type)
        return digest_bytes(_fetch(words[start:stop]).view(np.uint8))

    return encode_scanned(
        layout,
        chunks(),
        hash_leaf if digests is None else digests.leaf,
        base=base,
        files=files,
        chunk_words=chunk_words,
        level=level,
        threads=threads,
    )


def scan_on_device(
    old: torch.Tensor,
    new: torch.Tensor,
    dtype: DType,
    level: Level,
    *,
    tensor: int = 0,
    chunk_words: int = CHUNK_WORDS,
) -> Iterator[ScannedChunk]:
    """Yield what `scan_chunk` returns for each chunk of a tensor that changed, ascending.

    The tensors are of any dtype and shape; their bytes are taken as words of `dtype`.  To the host
    go a rank and a step for each change, two counts for each class and chunk, and both versions of
    a chunk for which a dense form is worth a try.  BAND_CHUNKS chunks are in work at a time.
    """
    if old.device != new.device:
        raise ValueError(f"both versions on one device expected: {old.device}, {new.device}")
    if old.nbytes != new.nbytes:
        raise StructureMismatch(f"{old.nbytes} bytes expected, found {new.nbytes}")
    if not old.nbytes:  # torch refuses to view some empty tensors
        return
    before, after = _as_words(old, dtype), _as_words(new, dtype)
    contextual = bool(dtype.class_mask) and level is not Level.FAST
    band = BAND_CHUNKS * chunk_words
    for start in range(0, before.numel(), band):
        o, n = before[start : start + band], after[start : start + band]
        for chunk, diff in _scan_band(o, n, dtype, chunk_words, contextual=contextual):
            inside = slice(chunk * chunk_words, (chunk + 1) * chunk_words)
            count = o[inside].numel()
            at = start + inside.start
            if may_be_dense(diff, count * dtype.word, level):
                words = (_fetch_words(o[inside], dtype), _fetch_words(n[inside], dtype))
                scanned = scan_chunk(tensor, at, *words, dtype, level)
                assert scanned is not None
                yield scanned
            else:
                yield ScannedChunk(tensor=tensor, start=at, count=count, diff=diff, dense=None)


def _scan_band(
    old: torch.Tensor, new: torch.Tensor, dtype: DType, chunk_words: int, *, contextual: bool
) -> Iterator[tuple[int, ChunkDiff]]:
    """Yield number and changes of each chunk that changed.

    The device waits for the host a fixed number of times, whatever changed.
    """
    changes = old != new
    if not bool(changes.any()):
        return
    if contextual:
        classes = (old >> dtype.class_shift & dtype.class_mask).to(torch.uint8)
        positions, ranks, population, changed = _ranked(classes, changes, chunk_words)
    else:
        positions = changes.nonzero().view(-1)
        ranks = positions % chunk_words
        chunks = -(-old.numel() // chunk_words)
        population, changed = old.new_zeros((2, chunks, CLASSES), dtype=torch.int64)
        population[:, 0] = chunk_words
        population[-1, 0] = old.numel() - (chunks - 1) * chunk_words
        changed[:, 0] = torch.bincount(positions // chunk_words, minlength=chunks)
    delta = _ordinal(new[positions], dtype) - _ordinal(old[positions], dtype)
    counts = _fetch(torch.stack([population, changed]).to(torch.int32)).astype(np.int64)
    yield from _cut(counts[0], counts[1], _fetch(ranks.to(torch.int32)), _fetch(delta))


def _ranked(
    classes: torch.Tensor, changes: torch.Tensor, chunk_words: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return positions and ranks of the changes, chunk by chunk in class order, and both counts.

    Counts have shape [chunks, CLASSES].  One stable sort of the whole band by class puts the words
    of each class side by side, the chunks in order within: a word's rank is its place in that less
    the place where its class and chunk begin, and counts say where that is.
    """
    chunks = -(-classes.numel() // chunk_words)
    cell = classes.to(torch.int32)
    for chunk in range(1, chunks):
        cell[chunk * chunk_words : (chunk + 1) * chunk_words] += chunk * CLASSES
    population = torch.bincount(cell, minlength=chunks * CLASSES).view(chunks, CLASSES)
    del cell
    by_class = population.T.reshape(-1)
    begins = (by_class.cumsum(0) - by_class).view(CLASSES, chunks).T.reshape(-1)

    ordered, order = torch.sort(classes, stable=True)
    places = changes[order].nonzero().view(-1)
    positions, of_class = order[places], ordered[places]
    del ordered, order
    of_chunk = positions // chunk_words
    cells = of_chunk * CLASSES + of_class
    ranks = places - begins[cells]
    changed = torch.bincount(cells, minlength=chunks * CLASSES).view(chunks, CLASSES)
    by_chunk = torch.sort(of_chunk.to(torch.uint8), stable=True)[1]
    return positions[by_chunk], ranks[by_chunk], population, changed


def _cut(
    population: npt.NDArray[np.int64],
    changed: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int32],
    delta: npt.NDArray[np.signedinteger],
) -> Iterator[tuple[int, ChunkDiff]]:
    """Yield the part of each chunk that changed; counts have shape [chunks, CLASSES]."""
    stops = changed.sum(axis=1).cumsum()
    for chunk in np.flatnonzero(changed.any(axis=1)):
        part = slice(stops[chunk - 1] if chunk else 0, stops[chunk])
        yield (
            int(chunk),
            ChunkDiff(
                population=population[chunk],
                changed=changed[chunk],
                classes=np.repeat(np.arange(CLASSES, dtype=np.uint8), changed[chunk]),
                ranks=ranks[part].view(np.uint32),
                magnitude=np.abs(delta[part].astype(np.int64)).view(np.uint64),
                down=delta[part] < 0,
            ),
        )


def _ordinal(words: torch.Tensor, dtype: DType) -> torch.Tensor:
    """See `skerry.codec.steps`; here as signed integers of the same bits."""
    if dtype.kind != "float":
        return words
    return torch.where(words < 0, words ^ torch.iinfo(words.dtype).max, words)


def _as_words(tensor: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Return a tensor's bytes as signed words, shape [words]; a copy if it is not contiguous."""
    return tensor.detach().contiguous().view(-1).view(_SIGNED[dtype.word])


def _named(spec: TensorSpec, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if spec.name not in tensors:
        raise StructureMismatch(f"{spec.name}: {spec.nbytes} bytes expected, found no such tensor")
    tensor = tensors[spec.name]
    if tensor.nbytes != spec.nbytes:
        raise StructureMismatch(f"{spec.name}: {spec.nbytes} bytes expected, found {tensor.nbytes}")
    return tensor


def _fetch_words(words: torch.Tensor, dtype: DType) -> Words:
    return _fetch(words).view(dtype.numpy)


def _fetch(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Copy to the host: the one way by which weights and what is said of them leave the device."""
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array
