"""From two sets of weights to a pack.

Three passes over changes, one over weights: scan each chunk, fit the profiles that chunks share,
code.  Only the changes are held, never the weights; when more than PENDING_CHANGES are held, they
are coded and the next chunks get profiles of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from skerry.codec.compress import compress
from skerry.codec.context import Coded, encode_chunks
from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.dtypes import DType
from skerry.codec.errors import StructureMismatch
from skerry.codec.index import ChunkEntry, FileEntry, Mode, PackIndex, write_index
from skerry.codec.layout import Layout
from skerry.codec.pack import FORMAT, HEADER, LEAF_CHECK_BYTES, MAGIC, leaf_range, leaves_of
from skerry.codec.planes import encode_planes
from skerry.codec.profile import Profile, fit
from skerry.codec.rates import BITS_CHANGED, BITS_UNCHANGED, NEVER, TOTAL, Ints
from skerry.codec.scan import CHUNK_WORDS, ChunkDiff, scan
from skerry.codec.steps import to_symbols
from skerry.codec.tensors import Read, TensorSpec, TensorStat

PENDING_CHANGES = 1 << 23
_INDEX_LEVEL = 19
_FILE_LEVEL = 19
_TRY_DENSE_FROM = 8  # dense forms are tried when coding would cost over 1/8 of the raw words


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPack:
    """A pack's bytes, the result digests of the leaves that changed, and what changed where."""

    data: bytes
    leaves: Mapping[str, Mapping[int, Digest]]
    stats: tuple[TensorStat, ...]  # tensors that changed

    @property
    def changed(self) -> int:
        return sum(stat.changed for stat in self.stats)


def encode_pack(
    layout: Layout,
    old: Read,
    new: Read,
    *,
    base: Digest,
    files: Mapping[str, bytes] | None = None,
    chunk_words: int = CHUNK_WORDS,
) -> EncodedPack:
    """Return the patch that turns the weights of `old` into those of `new`.

    `old` and `new` return a tensor's bytes, shape [nbytes]; each is called at most twice for a
    tensor.  `files` travel whole.  Raises StructureMismatch if sizes differ.
    """
    encoder = _Encoder(layout, old, new, chunk_words)
    for number in range(len(layout.tensors)):
        encoder.add(number)
    encoder.flush()
    return encoder.finish(base, files or {})


@dataclass(slots=True)
class _Pending:
    """A chunk that was scanned and waits to be coded."""

    tensor: int
    start: int
    count: int
    diff: ChunkDiff


@dataclass(slots=True)
class _Encoder:
    layout: Layout
    old: Read
    new: Read
    chunk_words: int
    profiles: list[Profile] = field(default_factory=list)
    entries: list[ChunkEntry] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    changed: dict[int, int] = field(default_factory=dict)
    _pending: list[_Pending] = field(default_factory=list)
    _held: int = 0

    def add(self, number: int) -> None:
        """Scan one tensor."""
        spec = self.layout.tensors[number]
        old, new = self._words(spec)
        for start in range(0, spec.words, self.chunk_words):
            stop = min(start + self.chunk_words, spec.words)
            diff = scan(old[start:stop], new[start:stop], spec.type)
            if diff is None:
                continue
            self._pending.append(_Pending(number, start, stop - start, diff))
            self.changed[number] = self.changed.get(number, 0) + diff.positions.size
            self._held += diff.positions.size
            if self._held >= PENDING_CHANGES:
                self.flush()

    def flush(self) -> None:
        """Code what was scanned: one profile for each dtype, then each chunk its cheapest form."""
        pending, self._pending, self._held = self._pending, [], 0
        specs = self.layout.tensors
        for dtype in dict.fromkeys(specs[p.tensor].dtype for p in pending):
            group = [p for p in pending if specs[p.tensor].dtype == dtype]
            profile, tilts = fit(
                np.stack([p.diff.population for p in group]),
                np.stack([p.diff.changed for p in group]),
                [p.diff.magnitude for p in group],
                [p.diff.classes.astype(np.int64) for p in group],
            )
            self._code(group, specs[group[0].tensor].type, profile, tilts)

    def _code(self, group: list[_Pending], dtype: DType, profile: Profile, tilts: Ints) -> None:
        number = len(self.profiles)
        mode = Mode.CONTEXT if dtype.class_mask else Mode.GAP
        coded: list[tuple[_Pending, Coded]] = []
        for pending, tilt in zip(group, tilts, strict=True):
            setting = Coded(
                dtype=dtype, profile=profile, tilt=int(tilt), contextual=mode is Mode.CONTEXT
            )
            dense = self._dense_form(pending, _estimate(pending, setting))
            if dense is None:
                coded.append((pending, setting))
            else:
                self._emit(pending, dense[0], dense[1])
        payloads = encode_chunks([p.diff for p, _ in coded], [s for _, s in coded])
        for (pending, setting), payload in zip(coded, payloads, strict=True):
            self._emit(pending, mode, payload, profile=number, tilt=setting.tilt)
        if coded:
            self.profiles.append(profile)

    def _dense_form(self, pending: _Pending, estimate: float) -> tuple[Mode, bytes] | None:
        """Return the dense form of a chunk that is cheaper than `estimate` bytes, if any is."""
        spec = self.layout.tensors[pending.tensor]
        raw_size = pending.count * spec.type.word
        if estimate * _TRY_DENSE_FROM < raw_size:
            return None
        old, new = self._words(spec)
        stop = pending.start + pending.count
        old, new = old[pending.start : stop], new[pending.start : stop]
        planes = encode_planes(old, new)
        if min(len(planes), raw_size) >= estimate:
            return None
        return (Mode.PLANES, planes) if len(planes) < raw_size else (Mode.RAW, new.tobytes())

    def _emit(
        self, pending: _Pending, mode: Mode, payload: bytes, *, profile: int = 0, tilt: int = 0
    ) -> None:
        self.entries.append(
            ChunkEntry(
                tensor=pending.tensor,
                start=pending.start,
                count=pending.count,
                mode=mode,
                profile=profile,
                tilt=tilt,
                size=len(payload),
            )
        )
        self.payloads.append(payload)

    def _words(self, spec: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
        old, new = self.old(spec), self.new(spec)
        if old.size != spec.nbytes or new.size != spec.nbytes:
            raise StructureMismatch(
                f"{spec.name}: {spec.nbytes} bytes expected, found {old.size} and {new.size}"
            )
        return spec.view(old), spec.view(new)

    def finish(self, base: Digest, files: Mapping[str, bytes]) -> EncodedPack:
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
        leaves = self._leaves(entries)
        checks = [
            bytes.fromhex(leaves[specs[tensor].name][leaf])[:LEAF_CHECK_BYTES]
            for tensor, leaf in leaves_of(entries, specs)
        ]
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

    def _leaves(self, entries: tuple[ChunkEntry, ...]) -> dict[str, dict[int, Digest]]:
        result: dict[str, dict[int, Digest]] = {}
        data: Bytes | None = None
        before = -1
        for tensor, leaf in leaves_of(entries, self.layout.tensors):
            spec = self.layout.tensors[tensor]
            if tensor != before or data is None:
                data, before = self.new(spec), tensor
            start, stop = leaf_range(spec, leaf)
            result.setdefault(spec.name, {})[leaf] = digest_bytes(data[start:stop])
        return result


def _estimate(pending: _Pending, setting: Coded) -> float:
    """Return about how many bytes the context coder would take."""
    rates = setting.profile.tilted(setting.tilt)
    used = rates != NEVER
    changed, rest = (
        pending.diff.changed[used],
        (pending.diff.population - pending.diff.changed)[used],
    )
    bits = changed @ BITS_CHANGED[rates[used]] + rest @ BITS_UNCHANGED[rates[used]]
    table_of = setting.profile.table_of[pending.diff.classes]
    for number, table in enumerate(setting.profile.tables, 1):
        symbols, _, width = to_symbols(pending.diff.magnitude[table_of == number], table.precision)
        bits += np.log2(TOTAL / table.frequencies[symbols]).sum() + width.sum()
    return float(bits + pending.diff.magnitude.size) / 8 + 4
