"""The context coder: changed positions by class, steps by class, a chunk at a time.

A chunk's bytes are one entropy-coded stream read from the front (`rans`) and one string of raw bits
read from the back.

1. **Gaps.** For each class in ascending order that may change and has words in the chunk: gaps
   between the ranks of its changed words.  With g and t of the class's rate code, a cursor at rank
   0 and R words left, the next symbol u of table t means: if `u < n`, n = min(31, ceil(R / 2^g)),
   the word at cursor + (u << g) + v changed, v being the next g raw bits; the cursor moves past it.
   Every slot from C(t, n) up is the escape: the cursor moves by min(31 << g, R).  A class ends when
   its cursor has passed all its words, so no counts are stored.
2. **Magnitudes.** For each change in class order whose class has a magnitude table: one symbol.
3. **Raw bits**, after those of the gaps: the magnitudes' raw bits, then a direction for each
   change, 1 for downwards.  The last (at most 16) directions travel in the entropy coder's last
   state: its low bits, under a single 1 at bit 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from skerry.codec.bits import pack_fields, unpack_fields
from skerry.codec.digest import Bytes
from skerry.codec.dtypes import DType, Words
from skerry.codec.errors import FormatError
from skerry.codec.profile import Profile
from skerry.codec.ragged import Steps
from skerry.codec.rans import LOW, SEED_BITS, Decoder, encode_streams
from skerry.codec.rates import CUMULATIVE, LOOKUP, NEVER, SYMBOLS, TOTAL, Ints, shift_of
from skerry.codec.scan import ChunkDiff, classes_of, locate, population_of
from skerry.codec.steps import from_symbols, take_steps, to_symbols, widths_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """How one chunk is coded: all that its bytes do not say themselves."""

    dtype: DType
    profile: Profile
    tilt: int
    contextual: bool


def encode_chunks(diffs: Sequence[ChunkDiff], settings: Sequence[Coded]) -> list[bytes]:
    """Return the bytes of each chunk."""
    starts, frequencies, raws, seeds = [], [], [], []
    for diff, setting in zip(diffs, settings, strict=True):
        gap_start, gap_frequency, gap_raw, gap_width = _gaps(diff, setting)
        precision = setting.profile.precision_of(diff.classes)
        symbol, extra, width = to_symbols(diff.magnitude, precision)
        start, frequency = _magnitudes(symbol, diff.classes, setting.profile)
        starts.append(np.concatenate([gap_start, start]))
        frequencies.append(np.concatenate([gap_frequency, frequency]))
        directions = diff.down.astype(np.uint8)
        kept = min(SEED_BITS, directions.size)
        stored = directions.size - kept
        raws.append(
            np.concatenate(
                [
                    pack_fields(gap_raw, gap_width),
                    pack_fields(extra, width),
                    directions[:stored],
                ]
            )
        )
        seeds.append(int(unpack_fields(directions[stored:], np.array([kept]))[0]))
    streams = encode_streams(starts, frequencies, seeds)
    return [
        stream + np.packbits(raw, bitorder="little")[::-1].tobytes()
        for stream, raw in zip(streams, raws, strict=True)
    ]


def _gaps(diff: ChunkDiff, setting: Coded) -> tuple[Ints, Ints, npt.NDArray[np.uint64], Ints]:
    """Return start and frequency of every gap symbol, then value and width of the raw bits."""
    rates = setting.profile.tilted(setting.tilt)
    starts, frequencies, raws, widths = [], [], [], []
    first = 0
    for c in np.flatnonzero((rates != NEVER) & (diff.population > 0)):
        population = int(diff.population[c])
        ranks = diff.ranks[first : first + int(diff.changed[c])].astype(np.int64)
        first += ranks.size
        g = int(shift_of(rates[c]))
        table = CUMULATIVE[rates[c] - 4 * g]
        span = SYMBOLS << g
        # One landing per change, and the end of the class as a last one that is only escapes.
        targets = np.append(ranks, population)
        cursors = np.concatenate([[0], ranks + 1])
        gap = targets - cursors
        escapes = gap // span
        escapes[-1] = -(-gap[-1] // span)
        symbol = np.append((gap[:-1] - escapes[:-1] * span) >> g, -1)
        code = np.full(int(escapes.sum()) + gap.size, SYMBOLS)
        code[np.cumsum(escapes + 1) - 1] = symbol
        code = code[:-1]
        begin, end = table[code], table[code + 1]
        if escapes[-1]:
            # The class's last escape takes in all symbols that would land past its end.
            left = int(gap[-1]) - (int(escapes[-1]) - 1) * span
            begin[-1] = table[min(SYMBOLS, -(-left >> g))]
        starts.append(begin)
        frequencies.append(end - begin)
        raws.append((gap[:-1] & ((1 << g) - 1)).astype(np.uint64))
        widths.append(np.full(ranks.size, g, np.int64))
    return (
        np.concatenate(starts),
        np.concatenate(frequencies),
        np.concatenate(raws),
        np.concatenate(widths),
    )


def _magnitudes(
    symbol: Ints, classes: npt.NDArray[np.uint8], profile: Profile
) -> tuple[Ints, Ints]:
    """Return start and frequency of the symbol of each change whose class has a table."""
    table_of = profile.table_of[classes]
    start, frequency = np.zeros(symbol.size, np.int64), np.zeros(symbol.size, np.int64)
    for number, table in enumerate(profile.tables, 1):
        at = np.flatnonzero(table_of == number)
        start[at] = table.starts[symbol[at]]
        frequency[at] = table.frequencies[symbol[at]]
    coded = np.flatnonzero(table_of)
    return start[coded], frequency[coded]


def decode_chunks(
    chunks: Sequence[bytes | memoryview], bases: Sequence[Words], settings: Sequence[Coded]
) -> list[tuple[Ints, Words]]:
    """Return the ascending positions and the new bits of each chunk.

    `bases` are the words of each chunk before the patch.  Raises FormatError, and takes no more
    memory than a small multiple of the bases, whatever the bytes are.
    """
    if not chunks:
        return []
    classes = [
        classes_of(base, setting.dtype, contextual=setting.contextual)
        for base, setting in zip(bases, settings, strict=True)
    ]
    reader = _Reader(chunks)
    found = reader.gaps([population_of(c) for c in classes], settings)
    symbols = reader.magnitudes([c for c, _ in found], settings)
    results = []
    for i, (base, setting) in enumerate(zip(bases, settings, strict=True)):
        of_class, ranks = found[i]
        magnitude, down = reader.raw_tail(i, symbols[i], setting.profile.precision_of(of_class))
        positions = locate(classes[i], of_class, ranks)
        new = take_steps(base[positions], magnitude, down, setting.dtype)
        ascending = np.argsort(positions, kind="stable")
        results.append((positions[ascending], new[ascending]))
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The classes that each chunk of a batch walks through, one row each, as columns."""

    classes: Ints
    population: Ints
    shift: Ints  # g
    table: Ints  # t
    begin: Ints  # of each chunk's rows, and one more

    @classmethod
    def of(cls, populations: Sequence[Ints], settings: Sequence[Coded]) -> _Rows:
        classes, population, rates = [], [], []
        for people, setting in zip(populations, settings, strict=True):
            tilted = setting.profile.tilted(setting.tilt)
            walked = np.flatnonzero((tilted != NEVER) & (people > 0))
            classes.append(walked)
            population.append(people[walked])
            rates.append(tilted[walked])
        rate = np.concatenate(rates)
        shift = shift_of(rate)
        return cls(
            classes=np.concatenate(classes),
            population=np.concatenate(population),
            shift=shift,
            table=rate - 4 * shift,
            begin=np.cumsum([0] + [c.size for c in classes]),
        )


class _Reader:
    """The two ends of every chunk of a batch: words from the front, raw bits from the back."""

    def __init__(self, chunks: Sequence[bytes | memoryview]) -> None:
        self.sizes = np.array([len(chunk) for chunk in chunks], np.int64)
        if bool((self.sizes < 4).any()):
            raise FormatError("a coded chunk has at least 4 bytes")
        # Padding lets reads run past a chunk's ends; `raw_tail` refuses chunks that did.
        self.data: Bytes = np.frombuffer(bytes(4) + b"".join(chunks) + bytes(4), np.uint8)
        self.begin = np.cumsum(self.sizes) - self.sizes + 4
        self.coder = Decoder(self.data, self.begin)
        if bool((self.coder.state < LOW).any()):
            raise FormatError("a coded chunk starts with a state that no encoder leaves")
        self.used = np.zeros(len(chunks), np.int64)  # raw bits taken so far
        self.most = 8 * (self.sizes - 4) + SEED_BITS  # raw bits that the bytes have room for
        # The 32 raw bits that start in each byte: it is the lowest, the bytes before it follow.
        d = self.data.astype(np.uint32)
        self.windows = d.copy()
        for byte in (1, 2, 3):
            self.windows[byte:] |= d[:-byte] << np.uint32(8 * byte)

    def gaps(
        self, populations: Sequence[Ints], settings: Sequence[Coded]
    ) -> list[tuple[Ints, Ints]]:
        """Return class and rank of every change of every chunk, in class order."""
        rows = _Rows.of(populations, settings)
        lanes = np.flatnonzero(np.diff(rows.begin))
        row, stop = rows.begin[:-1][lanes], rows.begin[1:][lanes]
        cursor = np.zeros(lanes.size, np.int64)
        changes = np.zeros(lanes.size, np.int64)
        taken = self.used[lanes]
        last = self.begin[lanes] + self.sizes[lanes] - 1  # where a lane's raw bits start
        log: list[tuple[Ints, Ints, Ints]] = []
        while lanes.size:
            g, t, population = rows.shift[row], rows.table[row], rows.population[row]
            slots = self.coder.slots(lanes)
            symbol = LOOKUP[t, slots]
            landed = cursor + (symbol << g)
            escaped = (symbol == SYMBOLS) | (landed >= population)
            begin, end = CUMULATIVE[t, symbol], CUMULATIVE[t, symbol + 1]
            if escaped.any():
                # An escape is all slots from the first symbol that lands past the class's end.
                e = np.flatnonzero(escaped)
                limit = np.minimum(SYMBOLS, -(-(population[e] - cursor[e]) >> g[e]))
                begin[e], end[e] = CUMULATIVE[t[e], limit], TOTAL
                landed[e] = np.minimum(cursor[e] + (SYMBOLS << g[e]), population[e]) - 1
            self.coder.advance(lanes, slots, begin, end - begin)
            width = np.where(escaped, 0, g)
            window = self.windows[np.maximum(last - (taken >> 3), 0)]
            landed += window >> (taken & 7) & ((1 << width) - 1)
            taken += width
            changes += ~escaped
            # Every change needs a direction too: this bounds the work by the chunk's own bytes.
            if bool((taken + changes > self.most[lanes]).any()):
                raise FormatError("a coded chunk holds more changes than its bytes can")
            hit = ~escaped
            log.append((lanes[hit], rows.classes[row[hit]], landed[hit]))
            cursor = landed + 1
            if bool((cursor > population).any()):
                raise FormatError("a changed word lies past the end of its class")
            finished = cursor == population
            if finished.any():
                row = row + finished
                cursor[finished] = 0
                going = row < stop
                if not going.all():
                    self.used[lanes] = taken
                    lanes, row, stop, cursor, changes, taken, last = (
                        column[going] for column in (lanes, row, stop, cursor, changes, taken, last)
                    )
        return _by_lane(log, len(populations))

    def magnitudes(self, classes: Sequence[Ints], settings: Sequence[Coded]) -> list[Ints]:
        """Return the magnitude symbol of every change of every chunk."""
        symbols = [np.zeros(c.size, np.int64) for c in classes]
        tables = [s.profile.table_of[c] for c, s in zip(classes, settings, strict=True)]
        coded = [np.flatnonzero(t) for t in tables]
        for profile in {id(s.profile): s.profile for s in settings}.values():
            members = [i for i, s in enumerate(settings) if s.profile is profile and coded[i].size]
            if not members:
                continue
            widest = max(table.frequencies.size for table in profile.tables)
            starts = np.zeros((len(profile.tables), widest), np.int64)
            frequencies = np.zeros_like(starts)
            for number, table in enumerate(profile.tables):
                starts[number, : table.starts.size] = table.starts
                frequencies[number, : table.starts.size] = table.frequencies
            symbol_of = np.stack([table.symbol_of for table in profile.tables])
            steps = Steps(np.array([coded[i].size for i in members]))
            lane_of = np.array(members)[steps.order]
            which = np.empty(steps.items, np.int64)
            for lane, i in enumerate(lane_of):
                which[steps.of_lane(lane)] = tables[i][coded[i]] - 1
            out = np.empty(steps.items, np.int64)
            for step in range(steps.count):
                here = steps.at(step)
                t = which[here]
                lanes = lane_of[: t.size]
                slots = self.coder.slots(lanes)
                symbol = symbol_of[t, slots]
                self.coder.advance(lanes, slots, starts[t, symbol], frequencies[t, symbol])
                out[here] = symbol
            for lane, i in enumerate(lane_of):
                symbols[i][coded[i]] = out[steps.of_lane(lane)]
        return symbols

    def raw_tail(
        self, lane: int, symbol: Ints, precision: Ints
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """Return magnitudes and directions; check that the chunk's bytes end where they should."""
        kept = min(SEED_BITS, symbol.size)
        widths = widths_of(symbol, precision)
        extra = int(widths.sum())
        stored = int(self.used[lane]) + extra + symbol.size - kept
        begin, size = int(self.begin[lane]), int(self.sizes[lane])
        words = int(self.coder.next[lane]) - begin
        if words + -(-stored // 8) != size:
            raise FormatError(
                f"a coded chunk of {size} bytes holds {words} of symbols and {stored} raw bits"
            )
        bits = np.unpackbits(self.data[begin + words : begin + size][::-1], bitorder="little")
        if bits[stored:].any():
            raise FormatError("padding bits of a coded chunk are not zero")
        state = int(self.coder.state[lane])
        if state >> SEED_BITS != 1 or (state - LOW) >> kept:
            raise FormatError("the entropy coder's last state is not a seed")
        if bool((widths + precision > 63).any()):
            # At least 2^64, which is out of range and must not wrap into it.
            raise FormatError("a step is out of range")
        start = int(self.used[lane])
        magnitude = from_symbols(symbol, unpack_fields(bits[start:], widths), precision)
        seed = np.array([state - LOW], np.uint64)
        directions = np.concatenate(
            [bits[start + extra : stored], pack_fields(seed, np.array([kept]))]
        )
        return magnitude, directions.astype(np.bool_)


def _by_lane(log: list[tuple[Ints, Ints, Ints]], lanes: int) -> list[tuple[Ints, Ints]]:
    empty = np.zeros(0, np.int64)
    columns = [np.concatenate([entry[i] for entry in log] or [empty]) for i in range(3)]
    lane, classes, ranks = columns
    order = np.argsort(lane, kind="stable")
    bounds = np.searchsorted(lane[order], np.arange(lanes + 1))
    return [(classes[order[a:b]], ranks[order[a:b]]) for a, b in pairwise(bounds)]
