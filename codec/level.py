"""Levels: how much work an encoder does for fewer bytes.  Decoders need not know."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """`fast` for links that are quicker than the encoder, `max` for links that are very slow.

    FAST codes positions without the exponents: neither side has to sort words into classes, for
    about half as many bytes again.  MAX tries the dense forms on more chunks, and harder: it gains
    where a version changes much, and next to nothing on a step of Adam, see decision 0004.
    """

    FAST = "fast"
    DEFAULT = "default"
    MAX = "max"
