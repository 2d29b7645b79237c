"""Reads what a request says about weight versions: strictly, in a header, in the body, or in both.

Laws: `parse_header(str(c)) == c` for every constraint, and header and body forms that mean the same
parse to equal constraints.  What is malformed or empty is an error, never "no constraint".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from skerry.inference.accepted import ANY, Constraint, Preference, VersionRange, union
from skerry.inference.errors import ConstraintInvalid

T = TypeVar("T")

MAX_VERSION = 2**63 - 1
MAX_RANGES = 64
MAX_WAIT_S = 10**9 - 1  # what can be written; a server's own cap is far below
MAX_HEADER_CHARS = 4096
VERSIONS_HEADER = "X-Accept-Weight-Versions"
WAIT_HEADER = "X-Weight-Version-Wait"
START_HEADER = "X-Weight-Version-Start"
END_HEADER = "X-Weight-Version-End"

_NUMBER = r"0|[1-9][0-9]{0,18}"
_LAG = re.compile(rf"latest-({_NUMBER})\.\.")
_PREFER = re.compile(rf"prefer=(newest|oldest|{_NUMBER})")
_WAIT = re.compile(r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,3})?s")
_SPACE = " \t"
_FORMS = ("min_version or max_version", "exact_version", "any_of", "max_lag")
_FIELDS = ("min_version", "max_version", "exact_version", "any_of", "max_lag", "prefer", "wait_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedVersions:
    """What one request says about versions.  `wait_s` None leaves the wait to the server."""

    constraint: Constraint = ANY
    wait_s: float | None = None


def parse_request(
    *,
    versions: Sequence[str] = (),
    wait: Sequence[str] = (),
    body: Sequence[object] = (),
    max_wait_s: float,
) -> RequestedVersions:
    """Read all that a request says about versions, each argument holding nothing or one value.

    `versions` and `wait` are the values of the two headers, `body` that of `weight_version`.
    Raises ConstraintInvalid if one is malformed, comes twice, or if header and body differ.
    """
    of_header = [parse_header(_only(VERSIONS_HEADER, versions))] if versions else []
    wait_of_header = [parse_wait(_only(WAIT_HEADER, wait))] if wait else []
    of_body, wait_of_body = _parse_body(body[0]) if body else ([], [])
    constraint = _agreed("accepted versions", of_header, of_body)
    wait_s = _agreed("wait", wait_of_header, wait_of_body)
    if wait_s is not None and wait_s > max_wait_s:
        raise ConstraintInvalid("wait", expected=f"at most {max_wait_s:g} s", found=wait_s)
    return RequestedVersions(constraint=ANY if constraint is None else constraint, wait_s=wait_s)


def parse_header(text: str) -> Constraint:
    """Parse the value of `X-Accept-Weight-Versions`.  Raises ConstraintInvalid."""
    if len(text) > MAX_HEADER_CHARS:
        raise ConstraintInvalid(
            VERSIONS_HEADER, expected=f"at most {MAX_HEADER_CHARS} characters", found=len(text)
        )
    versions, semicolon, parameter = text.partition(";")
    prefer: Preference = "newest"
    if semicolon:
        match = _PREFER.fullmatch(parameter.strip(_SPACE))
        if not match:
            raise ConstraintInvalid(
                "preference", expected="prefer=newest, prefer=oldest or prefer=44", found=parameter
            )
        word = match[1]
        prefer = _preference(_number("preference", word) if word.isdecimal() else word)
    items = [_parse_item(item.strip(_SPACE)) for item in versions.split(",", MAX_RANGES)]
    return _constraint(items, prefer)


def parse_body(value: object) -> RequestedVersions:
    """Parse the value of `weight_version`, as decoded from JSON.  Raises ConstraintInvalid."""
    return parse_request(body=[value], max_wait_s=MAX_WAIT_S)


def parse_wait(text: str) -> float:
    """Parse the value of `X-Weight-Version-Wait`.  Raises ConstraintInvalid."""
    if not _WAIT.fullmatch(text):
        raise ConstraintInvalid(WAIT_HEADER, expected="seconds such as 5s or 0.5s", found=text)
    return float(text[:-1])


def _parse_item(text: str) -> VersionRange | int:
    """Return one member of the header's list: a range, or the lag of a relative one."""
    if lag := _LAG.fullmatch(text):
        return _number("lag", lag[1])
    start, dots, end = text.partition("..")
    if not dots:
        version = _number("version", text)
        return VersionRange(version, version)
    if not start and not end:
        raise ConstraintInvalid("range", expected="one end at least, as in 41..", found=text)
    return _range(
        _number("range start", start) if start else 0, _number("range end", end) if end else None
    )


def _parse_body(value: object) -> tuple[list[Constraint], list[float]]:
    """Return the constraint and the wait of a body, each as nothing or one value."""
    if not isinstance(value, Mapping) or not value:
        raise ConstraintInvalid("weight_version", expected="an object with a field", found=value)
    for name in value:
        if name not in _FIELDS:
            raise ConstraintInvalid("weight_version", expected=" | ".join(_FIELDS), found=name)
    wait = [_wait(value["wait_s"])] if "wait_s" in value else []
    if value.keys() == {"wait_s"}:
        return [], wait
    items: list[list[VersionRange | int]] = []
    if "min_version" in value or "max_version" in value:
        start = _integer("min_version", value["min_version"]) if "min_version" in value else 0
        end = _integer("max_version", value["max_version"]) if "max_version" in value else None
        items.append([_range(start, end)])
    if "exact_version" in value:
        version = _integer("exact_version", value["exact_version"])
        items.append([VersionRange(version, version)])
    if "any_of" in value:
        items.append(_any_of(value["any_of"]))
    if "max_lag" in value:
        items.append([_integer("max_lag", value["max_lag"])])
    if len(items) > 1:
        raise ConstraintInvalid(
            "weight_version", expected=f"one of {', '.join(_FORMS)}", found=sorted(value)
        )
    prefer: Preference = "newest"
    if "prefer" in value:
        prefer = _preference(value["prefer"])
    return [_constraint(items[0] if items else ANY.ranges, prefer)], wait


def _any_of(value: object) -> list[VersionRange | int]:
    if not isinstance(value, list) or not value:
        raise ConstraintInvalid("any_of", expected="a list such as [41, [43, 45]]", found=value)
    items: list[VersionRange | int] = []
    for member in value[: MAX_RANGES + 1]:
        ends = member if isinstance(member, list) else [member, member]
        if len(ends) != 2:
            raise ConstraintInvalid("any_of", expected="a version or [start, end]", found=member)
        items.append(_range(_integer("any_of", ends[0]), _integer("any_of", ends[1])))
    return items


def _constraint(items: Sequence[VersionRange | int], prefer: Preference) -> Constraint:
    if len(items) > MAX_RANGES:
        raise ConstraintInvalid(
            "accepted versions", expected=f"at most {MAX_RANGES} ranges", found="more"
        )
    lags = [item for item in items if isinstance(item, int)]
    ranges = union(item for item in items if isinstance(item, VersionRange))
    return Constraint(ranges=ranges, lag=max(lags, default=None), prefer=prefer)


def _range(start: int, end: int | None) -> VersionRange:
    if end is not None and end < start:
        raise ConstraintInvalid("range", expected="start <= end", found=f"{start}..{end}")
    return VersionRange(start, end)


def _preference(said: object) -> Preference:
    if said == "newest":
        return "newest"
    return "oldest" if said == "oldest" else _integer("prefer", said)


def _number(what: str, text: str) -> int:
    if not re.fullmatch(_NUMBER, text) or int(text) > MAX_VERSION:
        raise ConstraintInvalid(what, expected="a decimal number below 2**63", found=text)
    return int(text)


def _integer(what: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_VERSION:  # bool is an int, 43.0 is not one
        raise ConstraintInvalid(what, expected="an integer in 0..2**63-1", found=value)
    return value


def _wait(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConstraintInvalid("wait_s", expected="a number of seconds", found=value)
    if not 0 <= value <= MAX_WAIT_S:
        raise ConstraintInvalid("wait_s", expected=f"0..{MAX_WAIT_S}", found=value)
    return float(value)


def _only(name: str, values: Sequence[str]) -> str:
    if len(values) != 1:
        raise ConstraintInvalid(name, expected="one header line", found=list(values))
    return values[0]


def _agreed(what: str, header: Sequence[T], body: Sequence[T]) -> T | None:
    if header and body and header[0] != body[0]:
        raise ConstraintInvalid(
            f"{what} in header and body", expected=str(header[0]), found=str(body[0])
        )
    return next(iter((*header, *body)), None)
