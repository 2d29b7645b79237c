"""From two sets of weights to a pack.

Three passes over changes, one over weights: scan each chunk, fit the profiles that chunks share,
code.  Only the changes are held, never the weights; when more than PENDING_CHANGES are held, they
are coded and the next chunks get profiles of their own.  The same input and level give the same
bytes whatever the kernel and the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from skerry.codec import kernel
from skerry.codec.compress import compress
from skerry.codec.context import Coded
from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.dtypes import DType, Words
from skerry.codec.errors import StructureMismatch
from skerry.codec.index import ChunkEntry, FileEntry, Mode, PackIndex, write_index
from skerry.codec.layout import Layout
from skerry.codec.level import Level
from skerry.codec.pack import FORMAT, HEADER, LEAF_CHECK_BYTES, MAGIC, leaf_range, leaves_of
from skerry.codec.parallel import ordered
from skerry.codec.planes import encode_planes
from skerry.codec.profile import Profile, fit
from skerry.codec.rates import BITS_CHANGED, BITS_UNCHANGED, NEVER, TOTAL, Ints
from skerry.codec.scan import CHUNK_WORDS, ChunkDiff
from skerry.codec.steps import to_symbols
from skerry.codec.tensors import Read, TensorSpec, TensorStat
from skerry.codec.weights import WeightsDigest

PENDING_CHANGES = 1 << 23
_INDEX_LEVEL = 19
_FILE_LEVEL = 19
# Dense forms are tried when coding would cost over 1/8, or 1/16, of the raw words.
_TRY_DENSE_FROM = {Level.FAST: 8, Level.DEFAULT: 8, Level.MAX: 16}
_DENSE_LEVEL = {Level.FAST: 3, Level.DEFAULT: 3, Level.MAX: 12}  # of zstd; 19 takes minutes a GB
_MOST_BYTES_PER_CHANGE = 4  # of two-byte words, which wider ones only exceed in bigger chunks
_AT_ONCE = 4  # chunks that a thread scans in a row
_SAMPLE = 4096  # magnitudes that an estimate looks at

Leaves = Mapping[str, Mapping[int, Digest]]  # by tensor name and leaf number
DigestOf = Callable[[int, int], Digest]  # of (tensor number, leaf number)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPack:
    """A pack's bytes, the result digests of the leaves that changed, and what changed where."""

    data: bytes
    leaves: Leaves
    stats: tuple[TensorStat, ...]  # tensors that changed

    @property
    def changed(self) -> int:
        return sum(stat.changed for stat in self.stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedChunk:
    """`count` words of a tensor (a number in the layout's table) from `start`, and what changed.

    `dense` is the chunk's best form without the coder, where that may be the smaller one.
    """

    tensor: int
    start: int
    count: int
    diff: ChunkDiff
    dense: tuple[Mode, bytes] | None


def encode_pack(
    layout: Layout,
    old: Read,
    new: Read,
    *,
    base: Digest,
    files: Mapping[str, bytes] | None = None,
    chunk_words: int = CHUNK_WORDS,
    level: Level = Level.DEFAULT,
    threads: int = 1,
    digests: WeightsDigest | None = None,
) -> EncodedPack:
    """Return the patch that turns the weights of `old` into those of `new`.

    `old` and `new` return a tensor's bytes, shape [nbytes], and are called from this thread, `new`
    twice for a tensor that changed.  `files` travel whole.  `digests` are those of `new` where they
    are known already.  Raises StructureMismatch if sizes differ.
    """

    def chunks() -> Iterator[tuple[int, int, Words, Words]]:
        for number, spec in enumerate(layout.tensors):
            before, after = _words(spec, old), _words(spec, new)
            for start in range(0, spec.words, chunk_words):
                stop = start + chunk_words
                yield number, start, before[start:stop], after[start:stop]

    def scan(chunk: tuple[int, int, Words, Words]) -> ScannedChunk | None:
        number, start, before, after = chunk
        dtype = layout.tensors[number].type
        return scan_chunk(number, start, before, after, dtype, level)

    return encode_scanned(
        layout,
        filter(None, ordered(scan, chunks(), threads, at_once=_AT_ONCE)),
        _LeafHash(layout, new) if digests is None else digests.leaf,
        base=base,
        files=files,
        chunk_words=chunk_words,
        level=level,
        threads=threads,
    )


def scan_chunk(
    tensor: int, start: int, old: Words, new: Words, dtype: DType, level: Level
) -> ScannedChunk | None:
    """Compare a chunk's words before and after, shape [count] each; None when they are the same."""
    diff = kernel.current().scan(old, new, dtype, contextual=level is not Level.FAST)
    if diff is None:
        return None
    dense = _dense_form(old, new, level) if may_be_dense(diff, old.nbytes, level) else None
    return ScannedChunk(tensor=tensor, start=start, count=old.size, diff=diff, dense=dense)


def may_be_dense(diff: ChunkDiff, raw_bytes: int, level: Level) -> bool:
    """Say whether coding would cost enough for a dense form to be tried."""
    times = _TRY_DENSE_FROM[level]
    if diff.magnitude.size * _MOST_BYTES_PER_CHANGE * times < raw_bytes:
        return False
    changed, population = diff.changed.astype(np.float64), diff.population
    share = np.divide(changed, population, out=np.zeros(changed.shape), where=population > 0)
    inside = (share > 0) & (share < 1)
    p, n = share[inside], population[inside]
    positions = -(n * (p * np.log2(p) + (1 - p) * np.log2(1 - p))).sum()
    magnitude, scale = _sampled(diff.magnitude)
    steps = diff.magnitude.size + scale * np.log2(magnitude.astype(np.float64)).sum()
    return bool(times * (32 + positions + steps) >= 8 * raw_bytes)


def encode_scanned(
    layout: Layout,
    chunks: Iterable[ScannedChunk],
    digest_of: DigestOf,
    *,
    base: Digest,
    files: Mapping[str, bytes] | None = None,
    chunk_words: int = CHUNK_WORDS,
    level: Level = Level.DEFAULT,
    threads: int = 1,
) -> EncodedPack:
    """Return the pack of chunks that were scanned at this level, ascending.

    `digest_of` returns the result digest of a leaf that changed: it is asked once all chunks were
    taken, in ascending order.
    """
    encoder = _Encoder(layout, chunk_words, level, threads)
    for chunk in chunks:
        encoder.add(chunk)
    encoder.flush()
    return encoder.finish(base, files or {}, digest_of)


@dataclass(slots=True)
class _Encoder:
    layout: Layout
    chunk_words: int
    level: Level
    threads: int
    profiles: list[Profile] = field(default_factory=list)
    entries: list[ChunkEntry] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    changed: dict[int, int] = field(default_factory=dict)
    _pending: list[ScannedChunk] = field(default_factory=list)
    _held: int = 0

    def add(self, chunk: ScannedChunk) -> None:
        self._pending.append(chunk)
        changes = chunk.diff.ranks.size
        self.changed[chunk.tensor] = self.changed.get(chunk.tensor, 0) + changes
        self._held += changes
        if self._held >= PENDING_CHANGES:
            self.flush()

    def flush(self) -> None:
        """Code what was scanned: one profile for each dtype, then each chunk its cheapest form."""
        pending, self._pending, self._held = self._pending, [], 0
        specs = self.layout.tensors
        for dtype in dict.fromkeys(specs[chunk.tensor].dtype for chunk in pending):
            group = [chunk for chunk in pending if specs[chunk.tensor].dtype == dtype]
            profile, tilts = fit([chunk.diff for chunk in group])
            self._code(group, specs[group[0].tensor].type, profile, tilts)

    def _code(self, group: list[ScannedChunk], dtype: DType, profile: Profile, tilts: Ints) -> None:
        contextual = bool(dtype.class_mask) and self.level is not Level.FAST
        coded: list[ScannedChunk] = []
        settings: list[Coded] = []
        for chunk, tilt in zip(group, tilts, strict=True):
            setting = Coded(dtype=dtype, profile=profile, tilt=int(tilt), contextual=contextual)
            if chunk.dense is not None and len(chunk.dense[1]) < _estimate(chunk.diff, setting):
                self._emit(chunk, *chunk.dense)
            else:
                coded.append(chunk)
                settings.append(setting)
        payloads = kernel.current().encode([c.diff for c in coded], settings, self.threads)
        mode, number = Mode.CONTEXT if contextual else Mode.GAP, len(self.profiles)
        for chunk, setting, payload in zip(coded, settings, payloads, strict=True):
            self._emit(chunk, mode, payload, profile=number, tilt=setting.tilt)
        if coded:
            self.profiles.append(profile)

    def _emit(
        self, chunk: ScannedChunk, mode: Mode, payload: bytes, *, profile: int = 0, tilt: int = 0
    ) -> None:
        self.entries.append(
            ChunkEntry(
                tensor=chunk.tensor,
                start=chunk.start,
                count=chunk.count,
                mode=mode,
                profile=profile,
                tilt=tilt,
                size=len(payload),
            )
        )
        self.payloads.append(payload)

    def finish(self, base: Digest, files: Mapping[str, bytes], digest_of: DigestOf) -> EncodedPack:
        """Put the pack together."""
        specs = self.layout.tensors
        order = sorted(
            range(len(self.entries)),
            key=lambda i: (self.entries[i].tensor, self.entries[i].start),
        )
        entries = tuple(self.entries[i] for i in order)
        names = sorted(files)
        stored = [compress(files[name], _FILE_LEVEL) for name in names]
        index = compress(
            write_index(
                PackIndex(
                    chunk_words=self.chunk_words,
                    profiles=tuple(self.profiles),
                    chunks=entries,
                    files=tuple(
                        FileEntry(name=name, size=len(files[name]), stored=len(data))
                        for name, data in zip(names, stored, strict=True)
                    ),
                ),
                specs,
            ),
            _INDEX_LEVEL,
        )
        leaves: dict[str, dict[int, Digest]] = {}
        checks = []
        for tensor, leaf in leaves_of(entries, specs):
            digest = digest_of(tensor, leaf)
            leaves.setdefault(specs[tensor].name, {})[leaf] = digest
            checks.append(bytes.fromhex(digest)[:LEAF_CHECK_BYTES])
        header = HEADER.pack(MAGIC, FORMAT, len(index), bytes.fromhex(base))
        payloads = [self.payloads[i] for i in order]
        nbytes = dict.fromkeys(self.changed, 0)
        for entry in entries:
            nbytes[entry.tensor] += entry.size
        return EncodedPack(
            data=b"".join([header, index, *checks, *stored, *payloads]),
            leaves=leaves,
            stats=tuple(
                TensorStat(
                    name=specs[t].name,
                    changed=self.changed[t],
                    words=specs[t].words,
                    nbytes=nbytes[t],
                )
                for t in sorted(self.changed)
            ),
        )


def _words(spec: TensorSpec, read: Read) -> Words:
    data = read(spec)
    if data.size != spec.nbytes:
        raise StructureMismatch(f"{spec.name}: {spec.nbytes} bytes expected, found {data.size}")
    return spec.view(data)


@dataclass(slots=True)
class _LeafHash:
    """Hashes leaves; a tensor is read once for those that are asked for one after another."""

    layout: Layout
    read: Read
    _tensor: int = -1
    _data: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __call__(self, tensor: int, leaf: int) -> Digest:
        spec = self.layout.tensors[tensor]
        if tensor != self._tensor:
            self._tensor, self._data = tensor, self.read(spec)
        start, stop = leaf_range(spec, leaf)
        return digest_bytes(self._data[start:stop])


def _dense_form(old: Words, new: Words, level: Level) -> tuple[Mode, bytes]:
    planes = encode_planes(old, new, _DENSE_LEVEL[level])
    return (Mode.PLANES, planes) if len(planes) < new.nbytes else (Mode.RAW, new.tobytes())


def _estimate(diff: ChunkDiff, setting: Coded) -> float:
    """Return about how many bytes the context coder would take."""
    rates = setting.profile.tilted(setting.tilt)
    used = rates != NEVER
    changed, rest = diff.changed[used], (diff.population - diff.changed)[used]
    bits = changed @ BITS_CHANGED[rates[used]] + rest @ BITS_UNCHANGED[rates[used]]
    magnitude, scale = _sampled(diff.magnitude)
    table_of = setting.profile.table_of[_sampled(diff.classes)[0]]
    for number, table in enumerate(setting.profile.tables, 1):
        symbols, _, width = to_symbols(magnitude[table_of == number], table.precision)
        bits += scale * (np.log2(TOTAL / table.frequencies[symbols]).sum() + width.sum())
    return float(bits + diff.magnitude.size) / 8 + 4


def _sampled(column: np.ndarray) -> tuple[np.ndarray, float]:
    """Return every k-th item, _SAMPLE to twice that many, and how many items each stands for."""
    sample = column[:: max(1, column.size // _SAMPLE)]
    return sample, column.size / max(1, sample.size)
