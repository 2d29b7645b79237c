"""What an island says about itself in `islands/<id>.json`: small, overwritten, never believed.

Anybody who may write to the store can write one.  All that a status can do is to put off the
deletion of what it says it is reading, and that for no longer than the collector's own limit.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from skerry.bulletin import keys
from skerry.bulletin.errors import InvalidKey, NotFound, RecordInvalid, StoreDenied, StoreError
from skerry.bulletin.refs import MAX_INT
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)

logger = logging.getLogger(__name__)

STATUS_LIMIT_BYTES = 128 * 1024
MAX_ISLANDS = 4096
MAX_LEGS = 4096
MAX_ENGINES = 256
MAX_TEXT = 500

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
_PHASE = re.compile(r"[a-z]{1,32}")
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, lone surrogates

Leg = tuple[int | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What an island is reading: `legs` from version to version (None: a full), until `until_ms`,
    milliseconds since 1970 by the island's clock."""

    legs: tuple[Leg, ...]
    until_ms: int

    def to_json(self) -> dict[str, object]:
        return {"legs": [list(leg) for leg in self.legs], "until": self.until_ms}

    @classmethod
    def from_json(cls, value: object) -> Lease:
        fields = as_object(value, "reading")
        check_fields(fields, "reading", "legs", "until")
        legs = as_list(fields["legs"], "legs")
        if not 0 < len(legs) <= MAX_LEGS:
            raise FormatError(f"legs: expected 1 to {MAX_LEGS}, found {len(legs)}")
        return cls(
            legs=tuple(_leg(leg) for leg in legs),
            until_ms=as_int(fields["until"], "until", 0, MAX_INT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandReport:
    """One status.  `IslandReport.from_bytes(r.to_bytes()) == r` for every report within the limits.

    `engines` have the version that each serves, None for nothing.  `nbytes` of `total_bytes` of the
    install under way have been read.
    """

    island: str
    run: Digest | None = None
    version: int | None = None
    target: int | None = None
    newest: int | None = None
    lag: int = 0
    phase: str = "idle"
    error: str | None = None
    engines: Mapping[str, int | None] = field(default_factory=dict)
    nbytes: int = 0
    total_bytes: int = 0
    time_ms: int = 0
    reading: Lease | None = None

    def to_bytes(self) -> bytes:
        return canonical(
            {
                "island": self.island,
                "run": self.run,
                "version": self.version,
                "target": self.target,
                "newest": self.newest,
                "lag": self.lag,
                "phase": self.phase,
                "error": None if self.error is None else _NO_TEXT.sub(" ", self.error)[:MAX_TEXT],
                "engines": dict(self.engines),
                "bytes": self.nbytes,
                "total_bytes": self.total_bytes,
                "time": self.time_ms,
                "reading": None if self.reading is None else self.reading.to_json(),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> IslandReport:
        """Parse a stored status.  Raises RecordInvalid."""
        if len(data) > STATUS_LIMIT_BYTES:
            raise RecordInvalid(what, f"expected at most {STATUS_LIMIT_BYTES} bytes")
        try:
            return cls._parse(data, what)
        except (FormatError, InvalidKey) as error:
            raise RecordInvalid(what, str(error)) from error

    @classmethod
    def _parse(cls, data: bytes, what: str) -> IslandReport:
        fields = as_object(parse_json(data, what), what)
        check_fields(
            fields, what, "island", "run", "version", "target", "newest", "lag", "phase", "error",
            "engines", "bytes", "total_bytes", "time", "reading",
        )  # fmt: skip
        island = as_text(fields["island"], "island")
        if keys.island(island) != what:
            raise FormatError(f"island: expected the one of {what}, found {island!r:.80}")
        phase = as_text(fields["phase"], "phase")
        if not _PHASE.fullmatch(phase):
            raise FormatError(f"phase: expected a word, found {phase!r:.80}")
        error, run, reading = fields["error"], fields["run"], fields["reading"]
        if error is not None and len(as_text(error, "error")) > MAX_TEXT:
            raise FormatError(f"error: expected at most {MAX_TEXT} characters")
        if error is not None and _NO_TEXT.search(as_text(error, "error")):
            raise FormatError("error: expected text without control characters")
        return cls(
            island=island,
            run=None if run is None else parse_digest(run),
            version=_version(fields["version"], "version"),
            target=_version(fields["target"], "target"),
            newest=_version(fields["newest"], "newest"),
            lag=as_int(fields["lag"], "lag", 0, MAX_INT),
            phase=phase,
            error=None if error is None else as_text(error, "error"),
            engines=_engines(fields["engines"]),
            nbytes=as_int(fields["bytes"], "bytes", 0, MAX_INT),
            total_bytes=as_int(fields["total_bytes"], "total_bytes", 0, MAX_INT),
            time_ms=as_int(fields["time"], "time", 0, MAX_INT),
            reading=None if reading is None else Lease.from_json(reading),
        )


def read_reports(store: ObjectStore) -> Iterator[IslandReport]:
    """Yield the status of every island that has a sound one, of the first MAX_ISLANDS.

    Raises StoreError but for objects that are gone, refused, or no status; a store that may not be
    listed has none to show.
    """
    try:
        found = list(islice(store.list_after(keys.ISLAND_PREFIX), MAX_ISLANDS))
    except StoreDenied as error:
        logger.warning("no island's status is seen: %s", error)
        return
    for key in found:
        try:
            data = store.get(key, limit_bytes=STATUS_LIMIT_BYTES)
            yield IslandReport.from_bytes(data, what=key)
        except NotFound:
            continue
        except (RecordInvalid, StoreError) as error:
            logger.warning("a status that is none: %s", error)


def _version(value: object, where: str) -> int | None:
    return None if value is None else as_int(value, where, 0, MAX_INT)


def _leg(value: object) -> Leg:
    ends = as_list(value, "legs")
    if len(ends) != 2:
        raise FormatError(f"legs: expected two versions, found {len(ends)}")
    return _version(ends[0], "legs"), as_int(ends[1], "legs", 0, MAX_INT)


def _engines(value: object) -> dict[str, int | None]:
    engines = as_object(value, "engines")
    if len(engines) > MAX_ENGINES:
        raise FormatError(f"engines: expected at most {MAX_ENGINES}, found {len(engines)}")
    for name in engines:
        if not _NAME.fullmatch(name):
            raise FormatError(f"engines: expected names, found {name!r:.80}")
    return {name: _version(version, name) for name, version in engines.items()}
