"""Unsigned integers below 2^63 as LEB128: seven bits a byte, lowest first, shortest form only."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.codec.errors import FormatError

_MAX_BYTES = 9


def write_varint(out: bytearray, value: int) -> None:
    """Append one integer."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_varints(out: bytearray, values: Iterable[int]) -> None:
    for value in values:
        write_varint(out, value)


class VarintReader:
    """Reads integers and byte strings from the front of `data`; raises FormatError at its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def varint(self, limit: int) -> int:
        """Return the next integer.  Refuses one above `limit`, and any but the shortest form."""
        value = shift = 0
        for _ in range(_MAX_BYTES):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if byte == 0 and shift > 7:
                    raise FormatError("an integer is not in its shortest form", offset=self.at)
                if value > limit:
                    raise FormatError(f"expected at most {limit}, found {value}", offset=self.at)
                return value
        raise FormatError(f"an integer is longer than {_MAX_BYTES} bytes", offset=self.at)

    def varints(self, count: int, limit: int) -> list[int]:
        return [self.varint(limit) for _ in range(count)]

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size > len(self._data) - self.at:
            raise FormatError(f"{size} bytes expected, {len(self._data) - self.at} left")
        self.at += size
        return self._data[self.at - size : self.at]

    def finish(self) -> None:
        """Refuse anything left over."""
        if self.at != len(self._data):
            raise FormatError(f"{len(self._data) - self.at} bytes are left over", offset=self.at)

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise FormatError("the bytes end in the middle of an integer", offset=self.at)
        self.at += 1
        return self._data[self.at - 1]


def zigzag(value: int) -> int:
    """Map a signed integer to an unsigned one: 0, -1, 1, -2, ... to 0, 1, 2, 3, ..."""
    return 2 * value if value >= 0 else -2 * value - 1


def unzigzag(value: int) -> int:
    """Invert `zigzag`."""
    return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
