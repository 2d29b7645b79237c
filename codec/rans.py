"""Range asymmetric numeral systems, a batch of streams at a time.

A stream is a 32-bit state and 16-bit words.  Decoding a symbol of frequency f, starting at c of
TOTAL: `x = f * (x >> 12) + (x & 4095) - c`, then, if x < 2^16, `x = x << 16 | next word`.
Encoding is the inverse, from the last symbol to the first.  The encoder starts from
2^16 + `seed`, so the last state hands the decoder 16 bits that would otherwise be lost.

NumPy has no fast scalar loop, so encoding runs over all streams of a batch at once, symbol by
symbol.  Each stream's bytes are what a scalar coder would write.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from skerry.codec.ragged import Steps
from skerry.codec.rates import TOTAL_BITS, Ints

LOW = 1 << 16
SEED_BITS = 16
_EMIT_FROM = 32 - TOTAL_BITS  # state >= frequency << 20 would overflow 32 bits


def encode_streams(
    starts: Sequence[Ints], frequencies: Sequence[Ints], seeds: Sequence[int]
) -> list[bytes]:
    """Encode one stream for each item: symbols given by cumulative start and frequency.

    Returns each stream's bytes: the decoder's first state (u32), then its words (u16), all
    little-endian.
    """
    steps = Steps(np.array([s.size for s in starts], np.int64))
    start_of, frequency_of = np.empty(steps.items, np.int64), np.empty(steps.items, np.int64)
    for lane, stream in enumerate(steps.order):
        # The last symbol of each stream is encoded first.
        places = steps.of_lane(lane)
        start_of[places] = starts[stream][::-1]
        frequency_of[places] = frequencies[stream][::-1]
    state = np.array([LOW + seeds[stream] for stream in steps.order], np.int64)
    words = np.empty(steps.items, np.uint16)
    emitted = np.empty(steps.items, np.bool_)
    for step in range(steps.count):
        here = steps.at(step)
        f = frequency_of[here]
        x = state[: f.size]
        full = x >= f << _EMIT_FROM
        words[here] = x & 0xFFFF
        emitted[here] = full
        x = np.where(full, x >> 16, x)
        quotient = x // f
        state[: f.size] = (quotient << TOTAL_BITS) + x - quotient * f + start_of[here]
    streams = [b""] * len(starts)
    for lane, stream in enumerate(steps.order):
        places = steps.of_lane(lane)
        # The word emitted last is the one the decoder needs first.
        tail = words[places][emitted[places]][::-1]
        streams[stream] = int(state[lane]).to_bytes(4, "little") + tail.astype("<u2").tobytes()
    return streams


class Decoder:
    """The states of a batch of streams that advance together.

    `data` holds all streams, stream i from byte `offsets[i]`.  Words are read from wherever a
    stream has come to; the caller checks at the end that this was where it should be.  `data` must
    have two readable bytes past every place that it lets a stream come to.
    """

    def __init__(self, data: npt.NDArray[np.uint8], offsets: Ints) -> None:
        words = data[:-1].astype(np.int64) | data[1:].astype(np.int64) << 8
        self._words = words  # the 16-bit word that starts at each byte
        self._last = words.size - 1
        self.next = offsets + 4  # byte offset of each stream's next word
        self.state = words[offsets] | words[offsets + 2] << 16

    def slots(self, lanes: Ints) -> Ints:
        """Return each lane's slot in [0, TOTAL), which names its next symbol."""
        return self.state[lanes] & ((1 << TOTAL_BITS) - 1)

    def advance(self, lanes: Ints, slots: Ints, starts: Ints, frequencies: Ints) -> None:
        """Take the symbols that `slots` fell into."""
        x = frequencies * (self.state[lanes] >> TOTAL_BITS) + slots - starts
        low = x < LOW
        if low.any():
            some = lanes[low]
            at = np.minimum(self.next[some], self._last)
            x[low] = x[low] << 16 | self._words[at]
            self.next[some] += 2
        self.state[lanes] = x
