"""JSON from untrusted bytes: no duplicate keys, no floats, typed access with the place in errors.

Canonical form: UTF-8, keys sorted by code point, no white space, integers only.
`canonical(parse_json(b)) == b` for every canonical `b`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from skerry.codec.errors import FormatError


def parse_json(data: bytes, where: str) -> object:
    """Parse one JSON document.  Raises FormatError."""
    try:
        text = data.decode("utf-8", errors="strict")
        return json.loads(
            text,
            object_pairs_hook=lambda pairs: _unique(pairs, where),
            parse_float=lambda number: _refuse(number, where),
            parse_constant=lambda number: _refuse(number, where),
            parse_int=lambda number: _integer(number, where),
        )
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: not UTF-8: {error.reason}", offset=error.start) from error
    except json.JSONDecodeError as error:
        raise FormatError(f"{where}: not JSON: {error.msg}", offset=error.pos) from error
    except RecursionError as error:
        raise FormatError(f"{where}: nested too deeply") from error


def canonical(value: object) -> bytes:
    """Return the one encoding of `value` that digests and signatures are made of."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def as_object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected an object, found {_kind(value)}")
    return value


def as_list(value: object, where: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise FormatError(f"{where}: expected a list, found {_kind(value)}")
    return value


def as_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{where}: expected text, found {_kind(value)}")
    return value


def as_int(value: object, where: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(f"{where}: expected an integer, found {_kind(value)}")
    if not low <= value <= high:
        raise FormatError(f"{where}: expected {low} to {high}, found {value}")
    return value


def check_fields(value: Mapping[str, object], where: str, *names: str) -> None:
    """Refuse an object that lacks one of `names` or has any other field."""
    if set(value) != set(names):
        raise FormatError(f"{where}: expected fields {sorted(names)}, found {sorted(value)}")


def _unique(pairs: list[tuple[str, object]], where: str) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise FormatError(f"{where}: key {twice!r:.80} is given twice")
    return result


def _refuse(number: str, where: str) -> object:
    raise FormatError(f"{where}: {number:.40} is not an integer")


def _integer(number: str, where: str) -> int:
    if len(number) > 20:
        raise FormatError(f"{where}: an integer of {len(number)} digits")
    return int(number)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", int: "an integer", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
