"""Rivals that list the changed words: where they are, and what they are now.

They differ in how a position is written: as it is, as the distance from the change before in a
variable number of bytes, in u16 with skips, or as a row and a column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from skerry.benchmarks.rival import Rival, pack, unpack
from skerry.codec.dtypes import Words

_SKIP = 0xFFFF  # a gap that is only a step on the way: no change there
_MAX_LEB_BYTES = 5  # of a gap below 2^35

Ints = npt.NDArray[np.int64]


def _changes(old: Words, new: Words) -> tuple[Words, Words, Ints]:
    old, new = old.reshape(-1), new.reshape(-1)
    return old, new, np.flatnonzero(old != new)


def _index_encode(old: Words, new: Words) -> list[bytes]:
    _, new, positions = _changes(old, new)
    return [positions.astype(np.int32).tobytes(), new[positions].tobytes()]


def _index_apply(words: Words, parts: Sequence[bytes]) -> None:
    words.reshape(-1)[np.frombuffer(parts[0], np.int32)] = np.frombuffer(parts[1], words.dtype)


def _u16_encode(old: Words, new: Words) -> list[bytes]:
    old, new, positions = _changes(old, new)
    gaps = np.diff(positions, prepend=-1) - 1
    skips = gaps // _SKIP
    stream = np.full(int(skips.sum()) + gaps.size, _SKIP, np.uint16)
    stream[np.cumsum(skips + 1) - 1] = gaps - skips * _SKIP
    return [pack(stream, 1), pack(old[positions] ^ new[positions], 1)]


def _u16_apply(words: Words, parts: Sequence[bytes]) -> None:
    stream = np.frombuffer(unpack(parts[0]), np.uint16)
    lands = stream != _SKIP
    # A skip passes over _SKIP words; a gap passes over its words and lands on the next.
    positions = np.cumsum(stream.astype(np.int64) + lands)[lands] - 1
    words.reshape(-1)[positions] ^= np.frombuffer(unpack(parts[1]), words.dtype)


def leb128(values: Ints) -> npt.NDArray[np.uint8]:
    """Return the values, each in as many groups of seven bits as it needs, the lowest first."""
    widths = np.ones(values.size, np.int64)
    for k in range(1, _MAX_LEB_BYTES):
        widths += values >> 7 * k > 0
    ends = np.cumsum(widths)
    out = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
    starts = ends - widths
    for k in range(int(widths.max(initial=0))):
        longer = widths > k
        groups = values[longer] >> 7 * k & 0x7F | (widths[longer] > k + 1) << 7
        out[starts[longer] + k] = groups
    return out


def from_leb128(data: npt.NDArray[np.uint8]) -> Ints:
    """Invert `leb128`."""
    ends = np.flatnonzero(data < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    values: Ints = (data[starts] & 0x7F).astype(np.int64)
    widths = ends - starts + 1
    for k in range(1, int(widths.max(initial=1))):
        longer = widths > k
        values[longer] |= (data[starts[longer] + k] & 0x7F).astype(np.int64) << 7 * k
    return values


def _leb_encode(old: Words, new: Words) -> list[bytes]:
    _, new, positions = _changes(old, new)
    gaps = np.diff(positions, prepend=-1) - 1
    return [leb128(gaps).tobytes(), new[positions].tobytes()]


def _leb_apply(words: Words, parts: Sequence[bytes]) -> None:
    gaps = from_leb128(np.frombuffer(parts[0], np.uint8))
    positions = np.cumsum(gaps + 1) - 1
    words.reshape(-1)[positions] = np.frombuffer(parts[1], words.dtype)


def _row_col_encode(old: Words, new: Words) -> list[bytes]:
    columns = old.shape[-1]
    _, new, positions = _changes(old, new)
    if not positions.size:
        return []
    row = positions // columns
    rows = np.diff(row, prepend=0)
    column = positions - row * columns
    # Within a row the distance from the change before, at the start of one the column itself.
    within = np.diff(column, prepend=0)
    within[rows > 0] = column[rows > 0]
    return [
        pack(_narrow(rows, np.uint8), 1),
        pack(_narrow(within, np.uint16), 1),
        pack(new[positions], 1),
    ]


def _row_col_apply(words: Words, parts: Sequence[bytes]) -> None:
    if not parts:
        return
    value = np.frombuffer(unpack(parts[2]), words.dtype)
    rows = _wide(unpack(parts[0]), value.size)
    within = _wide(unpack(parts[1]), value.size)
    # The column is the sum of the distances since the row began.
    total = np.cumsum(within)
    begins = rows > 0
    begins[0] = True
    before = (total - within)[begins]
    column = total - before[np.cumsum(begins) - 1]
    words.reshape(-1)[np.cumsum(rows) * words.shape[-1] + column] = value


def _narrow(values: Ints, least: type[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
    """Return the values in the narrowest type that holds them all, at least `least`."""
    fitting = np.min_scalar_type(int(values.max()))
    return values.astype(np.promote_types(fitting, least))


def _wide(data: bytes, count: int) -> Ints:
    values: Ints = np.frombuffer(data, f"<u{len(data) // count}").astype(np.int64)
    return values


INT32 = Rival(
    name="int32 index + value",
    used_by="TRL, verl, vLLM sparse, AstraFlow",
    encode=_index_encode,
    apply=_index_apply,
)
LEB128 = Rival(
    name="LEB128 gaps + value",
    used_by="SparrowRL, as its paper tells",
    encode=_leb_encode,
    apply=_leb_apply,
)
ROW_COLUMN = Rival(
    name="row/col gaps + value + zstd-1",
    used_by="PULSE",
    encode=_row_col_encode,
    apply=_row_col_apply,
)
U16_GAPS = Rival(
    name="u16 gaps + XOR + zstd-1",
    used_by="NeMo-RL",
    encode=_u16_encode,
    apply=_u16_apply,
)
