"""Values of answers that are not trusted.  Everything raises AnswerInvalid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from skerry.inference.attribution import Span
from skerry.inference.constraint import MAX_VERSION
from skerry.inference.errors import AnswerInvalid

_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
_MAX_TOKENS = 2**31 - 1


def as_object(what: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise AnswerInvalid(f"{what}: expected an object, found {value!r:.40}")
    return value


def as_list(what: str, value: object, limit: int) -> list[object]:
    if not isinstance(value, list) or len(value) > limit:
        raise AnswerInvalid(f"{what}: expected a list of at most {limit}")
    return value


def as_integer(what: str, value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise AnswerInvalid(f"{what}: expected an integer in 0..{limit}, found {value!r:.40}")
    return value


def version_from(value: object) -> int:
    """Read a version as answers write it.  Raises AnswerInvalid."""
    if not isinstance(value, str) or not _VERSION.fullmatch(value) or int(value) > MAX_VERSION:
        raise AnswerInvalid(f"version: expected a decimal number as text, found {value!r:.40}")
    return int(value)


def read_spans(value: object, tokens: int = _MAX_TOKENS) -> tuple[Span, ...]:
    """Read spans over at most `tokens`, the first from 0 on.  Raises AnswerInvalid."""
    if not isinstance(value, list) or len(value) > tokens:
        raise AnswerInvalid(f"weight_versions: expected at most {tokens} spans")
    spans = tuple(_span(as_object("span", item), tokens) for item in value)
    ends = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != ends[:-1]:
        raise AnswerInvalid(f"weight_versions: expected spans from 0 on, found {value!r:.120}")
    if any(a >= b for a, b in pairwise(ends)):
        raise AnswerInvalid(f"weight_versions: expected no empty span, found {value!r:.120}")
    return spans


def _span(value: Mapping[str, object], tokens: int) -> Span:
    return Span(
        version=version_from(value.get("version")),
        start=as_integer("span start", value.get("start"), tokens),
        end=as_integer("span end", value.get("end"), tokens),
    )
