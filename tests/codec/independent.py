"""A scalar decoder that follows docs/patch-format.md and shares no code with ours.

It shows that the page says all that a decoder needs, and refuses with ValueError what the page
says is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import zstandard
from blake3 import blake3

MAGIC = b"SKRYPACK"
LEAF = 16 << 20
CROSSING = 1 << 20
# dtype: bytes of a word, is it a float, lowest bit of its class, bits of its class
DTYPES = {
    "BF16": (2, True, 7, 8),
    "F16": (2, True, 10, 5),
    "F8_E4M3": (1, True, 3, 4),
    "F8_E4M3FNUZ": (1, True, 3, 4),
    "F8_E5M2": (1, True, 2, 5),
    "F8_E5M2FNUZ": (1, True, 2, 5),
    "F32": (4, True, 23, 8),
    "F64": (8, True, 55, 8),
    **{f"{sign}{8 * n}": (n, False, 0, 0) for sign in "IU" for n in (1, 2, 4, 8)},
    **dict.fromkeys(("BOOL", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2"), (1, False, 0, 0)),
    "C64": (8, False, 0, 0),
}
Q = """
   1440801    5145013   15004422   36905875   78665070  148652826  253857248
 398132550  581260615  799036310 1044178424 1307656790 1580030169 1852521207
2117713904 2369882518 2605029347 2820730047 3015876649 3190386796 3344923893
3480652712 3599040369 3701703250 3790295335 3866431115 3931635878 3987316692
"""


def _gap_starts(q: int) -> list[int]:
    survival, starts = 1 << 32, []
    for n in range(32):
        starts.append(n + (4064 * ((1 << 32) - survival) >> 32))
        survival = survival * q >> 32
    return starts


GAPS = [_gap_starts(int(q)) for q in Q.split()]  # C(t, 0) to C(t, 31)


class Table(NamedTuple):
    precision: int
    intervals: list[tuple[int, int, int]]  # symbol, first slot, slots


class Class(NamedTuple):
    number: int
    rate: int
    table: Table | None


class Chunk(NamedTuple):
    tensor: int
    start: int
    length: int
    mode: int
    profile: int
    tilt: int
    size: int


def need(rule: bool, what: str) -> None:
    if not rule:
        raise ValueError(what)


def unpack(frame: bytes, size: int | None, limit: int) -> bytes:
    """Return what one zstd frame holds; `size` None: what it states, up to `limit`."""
    try:
        stated = zstandard.frame_content_size(frame)
        need(stated >= 0, "the frame states no content size")
        need(stated <= limit and size in (None, stated), "another size")
        stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        data = stream.decompress(frame)
    except zstandard.ZstdError as error:
        raise ValueError("not a zstd frame") from error
    need(stream.eof and not stream.unused_data, "not one whole zstd frame")
    need(len(data) == (stated if size is None else size), "unpacks to another size")
    return data


class Index:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def one(self, limit: int = (1 << 63) - 1) -> int:
        value = 0
        for length in range(9):
            need(self.at < len(self.data), "the index ends early")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << 7 * length
            if byte < 128:
                need(byte > 0 or length == 0, "a varint is not in its shortest form")
                need(value <= limit, "a number in the index is too large")
                return value
        raise ValueError("a varint is too long")

    def many(self, count: int, limit: int = (1 << 63) - 1) -> list[int]:
        need(count <= len(self.data) - self.at, "the index ends early")
        return [self.one(limit) for _ in range(count)]

    def text(self, length: int) -> str:
        need(length <= len(self.data) - self.at, "the index ends early")
        self.at += length
        return self.data[self.at - length : self.at].decode()  # UnicodeError is a ValueError

    def table(self) -> Table:
        precision, last, symbol, total = self.one(12), self.one(16383), 0, 0
        intervals = []
        while symbol <= last:
            frequency = self.one(4096)
            if frequency:
                intervals.append((symbol, total, frequency))
                total, symbol = total + frequency, symbol + 1
            else:
                symbol += 1 + self.one()
        need(total == 4096 and intervals[-1][0] == last, "a table does not end as it says")
        need(symbol == last + 1, "zeros reach past the table")
        return Table(precision, intervals)

    def profile(self) -> list[Class]:
        count = self.one()
        gaps, rates = self.many(count), self.many(count, 107)
        tables = self.one(32)
        table_of = self.many(count, tables)
        all_tables = [None, *(self.table() for _ in range(tables))]
        classes, number = [], -1
        for gap, rate, table in zip(gaps, rates, table_of, strict=True):
            number += gap + 1
            need(number < 256, "no such class")
            classes.append(Class(number, rate, all_tables[table]))
        return classes


class Coded:
    """The two ends of a coded chunk's payload."""

    def __init__(self, payload: bytes) -> None:
        self.payload, self.front, self.bits = payload, 0, 0
        self.x = self.word(4)
        need(self.x >= 65536, "a state that no coder leaves")

    def word(self, size: int) -> int:
        self.front += size
        need(self.front <= len(self.payload), "the front runs out")
        return int.from_bytes(self.payload[self.front - size : self.front], "little")

    def take(self, start: int, frequency: int) -> None:
        self.x = frequency * (self.x >> 12) + (self.x & 4095) - start
        if self.x < 65536:
            self.x = self.x << 16 | self.word(2)

    def raw(self, width: int) -> int:
        need(self.bits + width <= 8 * len(self.payload), "the back runs out")
        value = 0
        for i in range(width):
            byte = self.payload[-1 - (self.bits >> 3)]
            value |= (byte >> (self.bits & 7) & 1) << i
            self.bits += 1
        return value

    def close(self, stored: int) -> int:
        """Return the directions in the state, once nothing but they is left."""
        need(self.x >> 16 == 1 and (self.x & 65535) >> stored == 0, "the last state is not 65536+d")
        need(self.front + (self.bits + 7) // 8 == len(self.payload), "the ends do not meet")
        unused = -self.bits % 8
        need(self.raw(unused) == 0, "unused bits are not 0")
        return self.x & 65535

    def changed(self, population: int, rate: int, tilt: int) -> Iterator[int]:
        """Yield which of a class's words change."""
        r = min(max(rate + tilt, 12), 107) if rate >= 12 else rate
        g = max(0, (r - 24) >> 2)
        starts, cursor = GAPS[r - 4 * g], 0
        while cursor < population:
            limit = min(31, (population - cursor + (1 << g) - 1) >> g)
            slot = self.x & 4095
            if slot >= starts[limit]:
                self.take(starts[limit], 4096 - starts[limit])
                cursor = min(cursor + (31 << g), population)
                continue
            u = max(n for n in range(limit) if starts[n] <= slot)
            self.take(starts[u], starts[u + 1] - starts[u])
            cursor += (u << g) + self.raw(g)
            need(cursor < population, "a change past its class")
            yield cursor
            cursor += 1

    def symbol(self, table: Table) -> int:
        slot = self.x & 4095
        for symbol, start, frequency in table.intervals:
            if slot < start + frequency:
                self.take(start, frequency)
                return symbol
        raise AssertionError("frequencies sum to 4096")


def ordinal(bits: int, width: int, is_float: bool) -> int:
    """Return a word's ordinal, or a word from its ordinal: the map is its own inverse."""
    sign = 1 << (width - 1)
    return bits ^ (sign - 1) if is_float and bits & sign else bits


def coded(payload: bytes, old: bytes, dtype: str, chunk: Chunk, profile: list[Class]) -> bytes:
    word, is_float, shift, class_bits = DTYPES[dtype]
    width = 8 * word
    words = [int.from_bytes(old[i : i + word], "little") for i in range(0, len(old), word)]
    members: dict[int, list[int]] = {}
    for i, bits in enumerate(words):
        number = bits >> shift & ((1 << class_bits) - 1) if chunk.mode == 1 else 0
        members.setdefault(number, []).append(i)
    ends = Coded(payload)
    most = 8 * (len(payload) - 4) + 16
    changes: list[tuple[int, Table | None]] = []
    for number, rate, table in profile:
        own = members.get(number, [])
        for i in ends.changed(len(own), rate, chunk.tilt):
            changes.append((own[i], table))
            need(len(changes) <= most, "more changes than there is room for directions")
    symbols = [ends.symbol(table) if table else 0 for _, table in changes]
    magnitudes = []
    for y, (_, table) in zip(symbols, changes, strict=True):
        s = table.precision if table else 0
        j = max(0, ((y + 1) >> s) - 1)
        need(j < width, "a magnitude past half the ring")
        magnitudes.append(((y + 1 - (j << s)) << j) + ends.raw(j))
    stored = min(16, len(changes))
    downs = [ends.raw(1) for _ in range(len(changes) - stored)]
    d = ends.close(stored)
    downs += [d >> i & 1 for i in range(stored)]
    half = 1 << (width - 1)
    for (i, _), m, down in zip(changes, magnitudes, downs, strict=True):
        need(1 <= m < half or (m == half and down == 1), "a magnitude past half the ring")
        moved = ordinal(words[i], width, is_float) + (-m if down else m)
        words[i] = ordinal(moved % (1 << width), width, is_float)
    return b"".join(bits.to_bytes(word, "little") for bits in words)


def read_index(
    data: bytes, words: list[int]
) -> tuple[list[list[Class]], list[Chunk], list[tuple[str, int, int]]]:
    index = Index(data)
    grid = 1 << index.one(20)
    profiles = [index.profile() for _ in range(index.one(1024))]
    count = index.one()
    deltas, places = index.many(count), index.many(count, 1)
    explicit = index.many(2 * sum(places))
    modes, numbers, tilts, low, high = (index.many(count) for _ in range(5))
    chunks: list[Chunk] = []
    tensor = end = taken = 0
    for i in range(count):
        tensor += deltas[i]
        need(tensor < len(words), "no such tensor")
        end = 0 if deltas[i] else end
        if places[i]:
            start, length = explicit[taken : taken + 2]
            taken += 2
        else:
            start, length = end, min((end // grid + 1) * grid, words[tensor]) - end
        need(start >= end and length >= 1, "chunks do not ascend")
        end = start + length
        need(end <= words[tensor], "a chunk reaches past its tensor")
        need(start // CROSSING == (end - 1) // CROSSING, "a chunk crosses 1,048,576 words")
        tilt = -(tilts[i] + 1 >> 1) if tilts[i] & 1 else tilts[i] >> 1
        need(-63 <= tilt <= 63 and 1 <= modes[i] <= 4 and low[i] < 128, "a column out of range")
        if modes[i] > 2:
            need(numbers[i] == 0 and tilt == 0, "a profile for a chunk that is not coded")
        else:
            need(numbers[i] < len(profiles), "no such profile")
        size = low[i] + 128 * high[i]
        need((4 if modes[i] < 3 else 1) <= size <= 16 * length + 64, "no such size of a chunk")
        chunks.append(Chunk(tensor, start, length, modes[i], numbers[i], tilt, size))
    listed = range(index.one())
    files = [(index.text(index.one()), index.one(), index.one()) for _ in listed]
    names = [name.encode() for name, _, _ in files]
    need(all(a < b for a, b in pairwise(names)), "names do not ascend")
    need(index.at == len(data), "the index goes on after its end")
    return profiles, chunks, files


def decode_all(
    pack: bytes, tensors: Sequence[tuple[str, str, bytes]]
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the new bytes of each tensor, and the pack's files."""
    table = sorted(tensors, key=lambda tensor: tensor[0].encode())
    at = 0

    def part(size: int) -> bytes:
        nonlocal at
        need(size <= len(pack) - at, "the pack ends early")
        at += size
        return pack[at - size : at]

    need(part(8) == MAGIC, "not a pack")
    need(int.from_bytes(part(4), "little") == 1, "another format version")
    stored = int.from_bytes(part(4), "little")
    part(32)  # the base's version digest: docs/bulletin.md says of what
    index = unpack(part(stored), None, 256 << 20)
    words = [len(old) // DTYPES[dtype][0] for _, dtype, old in table]
    profiles, chunks, listed = read_index(index, words)
    leaves = sorted({(c.tensor, c.start * DTYPES[table[c.tensor][1]][0] // LEAF) for c in chunks})
    checks = [part(4) for _ in leaves]
    files = {name: unpack(part(kept), size, size) for name, size, kept in listed}
    new = [bytearray(old) for _, _, old in table]
    for chunk in chunks:
        _, dtype, whole = table[chunk.tensor]
        word = DTYPES[dtype][0]
        where = slice(chunk.start * word, (chunk.start + chunk.length) * word)
        payload, old = part(chunk.size), whole[where]
        if chunk.mode == 4:
            need(len(payload) == len(old), "raw words of another size")
            result = payload
        elif chunk.mode == 3:
            planes, n = unpack(payload, len(old), len(old)), chunk.length
            result = bytes(b ^ planes[i % word * n + i // word] for i, b in enumerate(old))
        else:
            result = coded(payload, old, dtype, chunk, profiles[chunk.profile])
        new[chunk.tensor][where] = result
    need(at == len(pack), "bytes after the last payload")
    for (tensor, leaf), check in zip(leaves, checks, strict=True):
        after = bytes(new[tensor][leaf * LEAF : (leaf + 1) * LEAF])
        need(blake3(after).digest()[:4] == check, "a leaf is not what its check says")
    return {name: bytes(new[i]) for i, (name, _, _) in enumerate(table)}, files


def decode(pack: bytes, tensors: Sequence[tuple[str, str, bytes]]) -> dict[str, bytes]:
    """Return the new bytes of `tensors` (name, dtype, old bytes), or raise ValueError."""
    return decode_all(pack, tensors)[0]
