"""Tables in Markdown, and where they go: between two comments that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


class NoSuchBlock(ValueError):
    """A text has no place for a table, or a place for a table that nobody makes."""


_BLOCK = re.compile(
    r"(?P<begin><!-- skerry bench readme: (?P<name>[\w-]+) -->\n)(?P<body>.*?)"
    r"(?P<end><!-- end of (?P=name) -->)",
    re.DOTALL,
)


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table; the last line ends with a newline."""
    top, *rest = (f"| {' | '.join(line)} |\n" for line in [head, *body])
    return f"{top}|{'---|' * len(head)}\n{''.join(rest)}"


def names(text: str) -> list[str]:
    """Return the names of the tables that a text has places for."""
    return [match["name"] for match in _BLOCK.finditer(text)]


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Return the text with every table in its place.  Raises NoSuchBlock."""
    found = names(text)
    if wrong := sorted(set(found) - set(blocks)):
        raise NoSuchBlock(f"nothing makes the table {wrong[0]}; there are {', '.join(blocks)}")
    if missing := sorted(set(blocks) - set(found)):
        raise NoSuchBlock(f"expected a place for the table {missing[0]}, found {', '.join(found)}")
    return _BLOCK.sub(lambda m: m["begin"] + blocks[m["name"]] + m["end"], text)
