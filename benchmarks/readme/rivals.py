"""Ours against each rival, with the reason wherever ours loses.

A ratio above 1 is one that ours wins: bytes are theirs over ours, speeds ours over theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skerry.benchmarks.readme.markdown import table
from skerry.codec.level import Level

Found = Mapping[str, Any]

_OURS = f"Skerry, {Level.DEFAULT}"
_SHOWN = {"BF16": (0.0002, 0.005, 0.05), "FP8": (0.005,)}  # densities
_LR = 1e-6  # of real weights
_TIMED = ("BF16", 0.005)  # precision and density of the case that speeds are taken from

_COPIES = "it copies positions and values and codes nothing"
_ONE_PASS = "one pass over all words, and zstd runs through zeros"
_REASONS = {
    "encode": {
        "int32 index + value": _COPIES,
        "LEB128 gaps + value": _COPIES,
        "row/col gaps + value + zstd-1": "zstd-1 does less for a change than an entropy coder",
        "u16 gaps + XOR + zstd-1": "zstd-1 does less for a change than an entropy coder",
        "dense XOR + zstd-1": _ONE_PASS,
        "dense XOR + zstd-3": _ONE_PASS,
        "ZipNN on the new file": "it looks at one file, and compares nothing",
        "zstd -3 --patch-from": "it matches long stretches and never looks at words",
    },
    "decode": {
        "int32 index + value": _COPIES,
        "LEB128 gaps + value": _COPIES,
        "row/col gaps + value + zstd-1": "its positions are read without the old words",
        "u16 gaps + XOR + zstd-1": "its positions are read without the old words",
        "dense XOR + zstd-1": _ONE_PASS,
        "dense XOR + zstd-3": _ONE_PASS,
        "dense XOR + zstd-19": _ONE_PASS,
        "ZipNN on the new file": "it needs no old weights",
        "zstd -3 --patch-from": "it copies long stretches of the old file",
        "zstd -19 --patch-from": "it copies long stretches of the old file",
        "xdelta3": "it copies long stretches of the old file",
    },
}


class NoReason(LookupError):
    """Ours loses a row, and nobody has said why: whoever changes the codec or the table does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One rival: ratios by what was measured, above 1 where ours wins."""

    codec: str
    used_by: str
    bytes_by_case: Mapping[str, float]
    speeds: Mapping[str, float]  # encode, decode

    def lost(self) -> Iterator[str]:
        """Yield what ours loses, and why.  Raises NoReason."""
        for case, ratio in self.bytes_by_case.items():
            if ratio < 1:
                raise NoReason(f"{self.codec} needs fewer bytes at {case}: {ratio:.2f}")
        whats: dict[str, list[str]] = {}
        for what, ratio in self.speeds.items():
            if ratio < 1:
                reason = _REASONS[what].get(self.codec)
                if reason is None:
                    raise NoReason(f"{self.codec} is faster at {what}: {ratio:.2f}")
                whats.setdefault(reason, []).append(what)
        for reason, some in whats.items():
            yield f"{' and '.join(some)}: {reason}"


def rivals(found: Found) -> str:
    """Return the table.  Raises NoReason."""
    against = list(compare(found))
    cases = list(against[0].bytes_by_case)
    head = [
        "rival", "used by", *(f"bytes, {case}" for case in cases), "encode", "decode",
        "where we lose, and why",
    ]  # fmt: skip
    body = [
        [
            one.codec,
            one.used_by,
            *(_ratio(one.bytes_by_case.get(case)) for case in cases),
            *(_ratio(one.speeds.get(what)) for what in ("encode", "decode")),
            "; ".join(one.lost()) or "nowhere here",
        ]
        for one in against
    ]
    return table(head, body)


def compare(found: Found) -> Iterator[Against]:
    """Yield every rival that was there."""
    cases = {name: measured["case"] for name, measured in _chosen(found)}
    timed = _timed(found)
    names = {row["codec"]: row for case in cases.values() for row in case["rows"]}
    for codec, row in names.items():
        if codec.startswith("Skerry") or row["missing"]:
            continue
        yield Against(
            codec=codec,
            used_by=row["used_by"],
            bytes_by_case={
                name: _size(_row(case, codec)) / _size(_row(case, _OURS))
                for name, case in cases.items()
            },
            speeds={
                what: _row(timed, _OURS)["speeds"][-1][what]
                / _row(timed, codec)["speeds"][-1][what]
                for what in ("encode", "decode")
            },
        )


def _chosen(found: Found) -> Iterator[tuple[str, Found]]:
    """Yield a sparse, a usual and a dense step of each precision, and live ones."""
    for measured in found["measured"]:
        place = measured["place"]
        shown = _SHOWN.get(place["precision"], ())
        if any(math.isclose(place["density"] or 0.0, share) for share in shown):
            yield f"{place['precision']} {100 * place['density']:g} %", measured
        elif place["source"] in ("live", "trace") and place["lr"] == _LR:
            yield f"{place['source']} {place['precision']}", measured


def _timed(found: Found) -> Found:
    precision, density = _TIMED
    for measured in found["measured"]:
        place = measured["place"]
        if place["precision"] == precision and math.isclose(place["density"] or 0.0, density):
            case: Found = measured["case"]
            return case
    raise LookupError(f"no case {_TIMED} in the results: run `skerry bench deltas` by default")


def _row(case: Found, codec: str) -> Found:
    rows: Sequence[Found] = case["rows"]
    return next(row for row in rows if row["codec"] == codec)


def _size(row: Found) -> float:
    encoded, changed = int(row["encoded_bytes"]), int(row["changed"])
    return encoded / max(changed, 1)


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    shown = f"{ratio:.1f} x" if ratio >= 10 else f"{ratio:.2f} x"
    return f"**{shown}**" if ratio < 1 else shown
