"""Is this place fit for a run, and is the run that lies there well?  One verdict per question.

Everything that is written is a scratch object below `hint/`, deleted again; the run is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from skerry.bulletin import keys, probe
from skerry.bulletin.checkpoint import CHECKPOINT_INTERVAL
from skerry.bulletin.errors import (
    BulletinError,
    ListUnsupported,
    NotFound,
    ReadOnly,
    ShortObject,
    StoreUnsafe,
)
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Record
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.start import read_hint
from skerry.bulletin.store import ObjectStore

_SCRATCH = bytes(range(256)) * 16
_MIDDLE = (1000, 3000)
_SKEW_MS = 60_000


class Verdict(StrEnum):
    """`WARN`: it works, and somebody should know; `SKIPPED`: it cannot be asked here."""

    OK = "ok"
    WARN = "warn"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer."""

    name: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Examines one store; `read_only` asks for nothing to be written."""

    store: ObjectStore
    pinned_key: PublicKey | None
    read_only: bool
    nonce: Callable[[], str]
    now: Callable[[], int]
    patience: Patience

    def examine(self) -> Iterator[Check]:
        """Yield a verdict per question, always in the same order."""
        yield from self._writes()
        yield from self._run()

    def _writes(self) -> Iterator[Check]:
        probes: tuple[tuple[str, Callable[[], str]], ...] = (
            ("conditional writes", self._conditions),
            ("races", self._races),
            ("list after write", self._list),
            ("ranges", self._ranges),
            ("replace", self._replace),
            ("delete", self._delete),
        )
        refused = "not asked to write" if self.read_only else ""
        for name, ask in probes:
            if refused:
                yield Check(name, Verdict.SKIPPED, refused)
                continue
            try:
                yield Check(name, Verdict.OK, ask())
            except ReadOnly as error:
                refused = str(error)
                yield Check(name, Verdict.SKIPPED, refused)
            except ListUnsupported as error:
                yield Check(name, Verdict.SKIPPED, str(error))
            except BulletinError as error:
                yield Check(name, Verdict.FAILED, str(error))

    def _conditions(self) -> str:
        probe.probe_conditions(self.store, nonce=self.nonce, patience=self.patience)
        return "a conditional put of a taken key is refused and changes nothing"

    def _races(self) -> str:
        probe.probe_races(self.store, nonce=self.nonce, patience=self.patience)
        return f"exactly one of {probe.RACERS} at once succeeds, {probe.RACES} times"

    def _list(self) -> str:
        with _Scratch(self.store, self.nonce()) as key:
            if key not in set(self.store.list_after(keys.PROBE_PREFIX)):
                raise StoreUnsafe(key, "an object that was just created is not in the list")
        return "an object is in the list as soon as it is created"

    def _ranges(self) -> str:
        start, stop = _MIDDLE
        with _Scratch(self.store, self.nonce()) as key:
            found = self.store.get_range(key, start, stop)
            whole = b"".join(self.store.stream(key, 0, len(_SCRATCH)))
            if found != _SCRATCH[start:stop] or whole != _SCRATCH:
                raise StoreUnsafe(key, "a range of an object holds other bytes than the object")
            try:
                self.store.get_range(key, start, len(_SCRATCH) + 1)
            except ShortObject:
                return "ranges hold the right bytes, and one that is too long is refused"
        raise StoreUnsafe(key, "a range that ends behind the object is not refused")

    def _replace(self) -> str:
        with _Scratch(self.store, self.nonce()) as key:
            self.store.replace(key, b"replaced")
            if self.store.get(key, limit_bytes=len(_SCRATCH)) != b"replaced":
                raise StoreUnsafe(key, "shows what was there before it was replaced")
        return "a replaced object is the new one at once"

    def _delete(self) -> str:
        with _Scratch(self.store, self.nonce()) as key:
            pass
        try:
            self.store.size(key)
        except NotFound:
            return "a deleted object is gone at once"
        raise StoreUnsafe(key, "is still there after it was deleted")

    def _run(self) -> Iterator[Check]:
        reader = BulletinReader(self.store, pinned_key=self.pinned_key)
        try:
            reader.refresh()
            data = None if reader.state.seq < 0 else reader.slot(reader.state.seq)
            last = None if data is None else Record.parse(data)
        except BulletinError as error:
            yield Check("log", Verdict.FAILED, str(error))
            for name in ("key", "hint", "checkpoint", "clock"):
                yield Check(name, Verdict.SKIPPED, "the log cannot be read")
            return
        state = reader.state
        if state.seq < 0:
            yield Check("log", Verdict.WARN, "there is no log yet")
            return
        if last is None:
            yield Check("log", Verdict.FAILED, f"{keys.log(state.seq)} was there and is gone")
            return
        newest = "none" if state.newest is None else str(state.newest.version)
        yield Check(
            "log",
            Verdict.OK,
            f"{state.seq + 1} records of {state.nbytes} bytes, epoch {state.epoch} of "
            f"{state.writer}, newest version {newest}, head {state.head}",
        )
        yield self._key(reader)
        yield self._hint(reader)
        yield _checkpoint(reader)
        yield self._clock(last)

    def _key(self, reader: BulletinReader) -> Check:
        key = reader.state.key
        if key is None:
            return Check("key", Verdict.WARN, "the run is unsigned: whoever can write is believed")
        rotated = len(reader.state.rotations)
        detail = f"records are signed by {key}, after {rotated} rotations"
        if self.pinned_key is None:
            return Check("key", Verdict.WARN, f"{detail}; not pinned: give --key")
        return Check("key", Verdict.OK, f"{detail}, from the pinned {self.pinned_key} on")

    def _hint(self, reader: BulletinReader) -> Check:
        state = reader.state
        hint = read_hint(self.store)
        if hint is None:
            return Check("hint", Verdict.WARN, f"{keys.HINT} is missing or makes no sense")
        behind = state.seq - hint.seq
        if behind == 0 and hint.digest == state.head:
            return Check("hint", Verdict.OK, "names the newest record")
        if behind > 0:
            # A fence leaves none, and so does a writer that dies after its record.
            verdict = Verdict.OK if behind < CHECKPOINT_INTERVAL else Verdict.WARN
            return Check("hint", verdict, f"{behind} records behind")
        return Check("hint", Verdict.WARN, f"names record {hint.seq} {hint.digest}, which is not")

    def _clock(self, last: Record) -> Check:
        ahead_ms = last.time - self.now()
        if ahead_ms > _SKEW_MS:
            detail = f"the newest record is of {ahead_ms / 1000:.0f} s from now, by this clock"
            return Check("clock", Verdict.WARN, detail)
        return Check("clock", Verdict.OK, "the newest record is not of the future")


def _checkpoint(reader: BulletinReader) -> Check:
    seq = reader.state.seq
    if reader.state.key is None:
        return Check("checkpoint", Verdict.SKIPPED, "an unsigned run has none")
    if reader.checkpoint is None:
        due = seq + 1 >= 2 * CHECKPOINT_INTERVAL
        detail = f"none is found; the log has {seq + 1} records, one is due every "
        detail += f"{CHECKPOINT_INTERVAL}"
        return Check("checkpoint", Verdict.WARN if due else Verdict.OK, detail)
    behind = seq - reader.checkpoint
    verdict = Verdict.WARN if behind >= 2 * CHECKPOINT_INTERVAL else Verdict.OK
    return Check("checkpoint", verdict, f"of slot {reader.checkpoint}, {behind} records behind")


class _Scratch:
    """An object that is there while it is in use."""

    def __init__(self, store: ObjectStore, nonce: str) -> None:
        self._store = store
        self._key = keys.probe(nonce)

    def __enter__(self) -> str:
        self._store.put(self._key, [_SCRATCH])
        return self._key

    def __exit__(self, *_: object) -> None:
        self._store.delete(self._key)
