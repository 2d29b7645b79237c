"""Spans and streamed text: pieces that make up exactly the whole."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.attribution import spans_of, versions_of
from skerry.inference.text import TextStream


@given(st.lists(st.integers(40, 44)))
def test_spans_say_the_version_of_every_token(versions: list[int]) -> None:
    spans = spans_of(versions)
    assert list(versions_of(spans)) == versions
    assert [s.start for s in spans] == [0, *(s.end for s in spans)][: len(spans)]
    assert all(s.start < s.end for s in spans)
    assert all(a.version != b.version for a, b in pairwise(spans))


def decode(tokens: list[int]) -> str:
    """Decode bytes as byte-level tokenizers do."""
    return bytes(tokens).decode(errors="replace")


@given(st.text(), st.data())
def test_streamed_pieces_make_up_the_text(text: str, data: st.DataObject) -> None:
    tokens = list(text.encode())
    stream, pieces = TextStream(decode), []
    while tokens:
        n = data.draw(st.integers(1, len(tokens)))
        pieces.append(stream.push(tokens[:n]))
        tokens = tokens[n:]
    assert "".join(pieces) + stream.rest() == text


def test_half_a_character_is_held_back_until_it_is_whole_or_all_is_over() -> None:
    stream = TextStream(decode)
    euro = list("€".encode())
    assert [stream.push([t]) for t in euro] == ["", "", "€"]
    assert stream.push(euro[:2]) == ""
    assert stream.rest() == "\ufffd"
