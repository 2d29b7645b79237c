"""A scalar decoder that follows docs/patch-format.md and shares no code with ours.

It shows that the page says all that a decoder needs, and is an oracle without any NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import zstandard
from blake3 import blake3

# dtype: word in bytes, is it a float, lowest bit of the class, its mask
WORDS = {
    "BF16": (2, True, 7, 255),
    "F16": (2, True, 10, 31),
    "F8_E4M3": (1, True, 3, 15),
    "F8_E4M3FNUZ": (1, True, 3, 15),
    "F8_E5M2": (1, True, 2, 31),
    "F8_E5M2FNUZ": (1, True, 2, 31),
    "F32": (4, True, 23, 255),
    "F64": (8, True, 55, 255),
    **{name: (size, False, 0, 0) for name, size in (("I8", 1), ("I16", 2), ("I32", 4), ("I64", 8))},
    **{name: (size, False, 0, 0) for name, size in (("U8", 1), ("U16", 2), ("U32", 4), ("U64", 8))},
    **dict.fromkeys(("BOOL", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2"), (1, False, 0, 0)),
    "C64": (8, False, 0, 0),
}
STAY = [
    1440801, 5145013, 15004422, 36905875, 78665070, 148652826, 253857248,
    398132550, 581260615, 799036310, 1044178424, 1307656790, 1580030169, 1852521207,
    2117713904, 2369882518, 2605029347, 2820730047, 3015876649, 3190386796, 3344923893,
    3480652712, 3599040369, 3701703250, 3790295335, 3866431115, 3931635878, 3987316692,
]  # fmt: skip


@dataclass
class Table:
    precision: int
    frequencies: list[int]


@dataclass
class Profile:
    rates: dict[int, int]
    table_of: dict[int, int]
    tables: list[Table]


class Varints:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def many(self, count: int) -> list[int]:
        return [self.next() for _ in range(count)]


def decode(pack: bytes, tensors: Sequence[tuple[str, str, bytes]]) -> dict[str, bytes]:
    """Return the new bytes of `tensors`: name, dtype, old bytes."""
    ordered = sorted(tensors, key=lambda tensor: tensor[0].encode())
    assert pack[:8] == b"SKRYPACK"
    assert int.from_bytes(pack[8:12], "little") == 1
    at = 48 + int.from_bytes(pack[12:16], "little")
    index = Varints(zstandard.ZstdDecompressor().decompress(pack[48:at]))
    grid = 1 << index.next()
    profiles = [_profile(index) for _ in range(index.next())]
    count = index.next()
    deltas, places = index.many(count), index.many(count)
    explicit = iter(index.many(2 * sum(places)))
    modes, profile_of, tilts, low, high = (index.many(count) for _ in range(5))
    files = []
    for _ in range(index.next()):
        size = index.next()
        index.at += size
        files.append(index.many(2))
    assert index.at == len(index.data)
    chunks = []
    tensor = end = 0
    for i in range(count):
        tensor, end = tensor + deltas[i], end if i and not deltas[i] else 0
        words = len(ordered[tensor][2]) // WORDS[ordered[tensor][1]][0]
        if places[i]:
            start, length = next(explicit), next(explicit)
        else:
            start, length = end, min((end // grid + 1) * grid, words) - end
        end = start + length
        tilt = tilts[i] >> 1 if tilts[i] % 2 == 0 else -(tilts[i] >> 1) - 1
        chunks.append((tensor, start, length, modes[i], profile_of[i], tilt, low[i] | high[i] << 7))
    leaves = dict.fromkeys((t, start * WORDS[ordered[t][1]][0] >> 24) for t, start, *_ in chunks)
    checks = {leaf: pack[at + 4 * i : at + 4 * i + 4] for i, leaf in enumerate(leaves)}
    at += 4 * len(leaves) + sum(stored for _, stored in files)
    new = [bytearray(old) for _, _, old in ordered]
    for t, start, length, mode, profile, tilt, size in chunks:
        _, dtype, old = ordered[t]
        word = WORDS[dtype][0]
        base = old[start * word : (start + length) * word]
        payload, at = pack[at : at + size], at + size
        if mode == 4:
            result = payload
        elif mode == 3:
            planes = zstandard.ZstdDecompressor().decompress(payload)
            flat = bytes(planes[b * length + i] for i in range(length) for b in range(word))
            result = bytes(x ^ y for x, y in zip(base, flat, strict=True))
        else:
            result = _coded(payload, base, dtype, mode == 1, profiles[profile], tilt)
        new[t][start * word : (start + length) * word] = result
    assert at == len(pack)
    for (t, leaf), check in checks.items():
        assert blake3(bytes(new[t][leaf << 24 : leaf + 1 << 24])).digest()[:4] == check
    return {name: bytes(new[t]) for t, (name, _, _) in enumerate(ordered)}


def _profile(index: Varints) -> Profile:
    classes, c = [], -1
    count = index.next()
    for gap in index.many(count):
        c += gap + 1
        classes.append(c)
    rates = dict(zip(classes, index.many(count), strict=True))
    tables = index.next()
    table_of = dict(zip(classes, index.many(count), strict=True))
    return Profile(rates, table_of, [_table(index) for _ in range(tables)])


def _table(index: Varints) -> Table:
    precision, last = index.next(), index.next()
    frequencies: list[int] = []
    while len(frequencies) <= last:
        frequencies.append(index.next())
        if frequencies[-1] == 0:
            frequencies += [0] * index.next()
    assert sum(frequencies) == 4096
    assert len(frequencies) == last + 1
    return Table(precision, frequencies)


def _gap_table(t: int) -> list[int]:
    survival, starts = 1 << 32, []
    for n in range(32):
        starts.append(n + (4064 * ((1 << 32) - survival) >> 32))
        survival = survival * STAY[t] >> 32
    return starts


class Ends:
    """A coded chunk's two ends."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.x, self.at, self.used = int.from_bytes(payload[:4], "little"), 4, 0

    def take(self, start: int, frequency: int) -> None:
        self.x = frequency * (self.x >> 12) + (self.x & 4095) - start
        if self.x < 65536:
            self.x = self.x << 16 | int.from_bytes(self.payload[self.at : self.at + 2], "little")
            self.at += 2

    def raw(self, width: int) -> int:
        value = 0
        for bit in range(width):
            byte = self.payload[len(self.payload) - 1 - (self.used >> 3)]
            value |= (byte >> (self.used & 7) & 1) << bit
            self.used += 1
        return value


def _coded(
    payload: bytes, base: bytes, dtype: str, contextual: bool, profile: Profile, tilt: int
) -> bytes:
    word, is_float, shift, mask = WORDS[dtype]
    old = [int.from_bytes(base[i : i + word], "little") for i in range(0, len(base), word)]
    members: dict[int, list[int]] = {}
    for position, bits in enumerate(old):
        members.setdefault(bits >> shift & mask if contextual else 0, []).append(position)
    ends = Ends(payload)
    changed = [
        (c, members[c][rank])
        for c in sorted(profile.rates)
        if c in members
        for rank in _gaps(ends, len(members[c]), profile.rates[c], tilt)
    ]
    symbols = [_symbol(ends, profile, c) for c, _ in changed]
    magnitudes = []
    for (c, _), y in zip(changed, symbols, strict=True):
        s = profile.tables[profile.table_of[c] - 1].precision if profile.table_of[c] else 0
        j = max(0, (y + 1 >> s) - 1)
        magnitudes.append(((y + 1 - (j << s)) << j) + ends.raw(j))
    kept = min(16, len(changed))
    down = [ends.raw(1) for _ in range(len(changed) - kept)]
    assert ends.x >> 16 == 1
    down += [ends.x >> i & 1 for i in range(kept)]
    assert ends.at + -(-ends.used // 8) == len(payload)
    width = 8 * word
    new = list(old)
    for (_, position), m, d in zip(changed, magnitudes, down, strict=True):
        ordinal = _flip(old[position], width, is_float)
        moved = (ordinal - m if d else ordinal + m) % (1 << width)
        new[position] = _flip(moved, width, is_float)
    return b"".join(bits.to_bytes(word, "little") for bits in new)


def _gaps(ends: Ends, population: int, rate: int, tilt: int) -> Iterator[int]:
    r = min(max(rate + tilt, 12), 107) if rate >= 12 else rate
    g = max(0, (r - 24) >> 2)
    starts = [*_gap_table(r - 4 * g), 4096]
    cursor = 0
    while cursor < population:
        limit = min(31, -(-(population - cursor) >> g))
        slot = ends.x & 4095
        u = next(n for n in range(32) if starts[n] <= slot < starts[n + 1])
        if u < limit:
            ends.take(starts[u], starts[u + 1] - starts[u])
            cursor += (u << g) + ends.raw(g)
            assert cursor < population
            yield cursor
            cursor += 1
        else:
            ends.take(starts[limit], 4096 - starts[limit])
            cursor = min(cursor + (31 << g), population)


def _symbol(ends: Ends, profile: Profile, c: int) -> int:
    if not profile.table_of[c]:
        return 0
    slot, start = ends.x & 4095, 0
    for y, frequency in enumerate(profile.tables[profile.table_of[c] - 1].frequencies):
        if start <= slot < start + frequency:
            ends.take(start, frequency)
            return y
        start += frequency
    raise AssertionError("a table's frequencies sum to 4096")


def _flip(bits: int, width: int, is_float: bool) -> int:
    sign = 1 << (width - 1)
    return bits ^ (sign - 1) if is_float and bits & sign else bits
