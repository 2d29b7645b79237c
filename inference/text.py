"""Text from tokens that arrive one by one: a character is given out once it is whole.

Law: the pieces, with `rest`, make up the text of all tokens, for every tokenizer whose text of a
longer sequence only differs from a shorter one's at the end.
"""

from __future__ import annotations

from collections.abc import Callable

_REPLACEMENT = "\ufffd"  # what decoders write for the bytes of half a character


class TextStream:
    """Decodes a growing list of tokens, looking back only at the last pieces."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []  # those of the last piece, then those not given out yet
        self._known = 0  # how many of them are of the last piece

    def push(self, tokens: list[int]) -> str:
        """Return what can be told for sure after `tokens`."""
        self._tokens += tokens
        piece = self._piece()
        if not piece or piece.endswith(_REPLACEMENT):
            return ""
        self._tokens = self._tokens[self._known :]
        self._known = len(self._tokens)
        return piece

    def rest(self) -> str:
        """Return what was held back, when no more tokens come."""
        piece = self._piece()
        self._tokens, self._known = [], 0
        return piece

    def _piece(self) -> str:
        before = self._decode(self._tokens[: self._known])
        return self._decode(self._tokens)[len(before) :]
