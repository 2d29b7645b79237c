"""Reading a run: follow its log, fetch what the records name, believe nothing unverified."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from skerry.bulletin import keys
from skerry.bulletin.ahead import consecutive
from skerry.bulletin.errors import (
    LogTooLong,
    NotFound,
    ObjectTooLarge,
    RecordInvalid,
    ShortObject,
    Tampered,
)
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.patience import Patience
from skerry.bulletin.records import (
    RECORD_LIMIT_BYTES,
    Commit,
    FileRef,
    Full,
    ObjectRef,
    Record,
)
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.start import find_start
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Digest, DigestStream, digest_bytes
from skerry.codec.errors import FormatError
from skerry.codec.layout import Layout

logger = logging.getLogger(__name__)

T = TypeVar("T")
ReadProgress = Callable[[int, int, int], None]

LAYOUT_LIMIT_BYTES = 64 * 1024 * 1024  # stored, compressed
STORED_MANIFEST_LIMIT_BYTES = 64 * 1024 * 1024
DEFAULT_LOG_LIMIT_BYTES = 1 << 30  # a million commits of one pack
DEFAULT_WAIT = Patience(limit_s=30.0)
_LAYOUTS_KEPT = 4


class BulletinReader:
    """A follower of one run.

    `state` is what the log says so far; any thread may read it, and call `manifest`.  Everything
    else is for one thread at a time.  A record can arrive before the objects it names (replicated
    buckets), so a missing object is waited for up to `wait.limit_s` seconds; then NotFound names
    it.  A log whose records have more than `log_limit_bytes` together is refused: an unsigned one
    can be endless.

    A fresh reader of a signed run goes on from its newest checkpoint.  With `history` it reads
    every record, and keeps them.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        pinned_key: PublicKey | None = None,
        wait: Patience = DEFAULT_WAIT,
        log_limit_bytes: int = DEFAULT_LOG_LIMIT_BYTES,
        history: bool = False,
    ) -> None:
        self.store = store
        self.state = LogState(pinned_key=pinned_key)
        self._wait = wait
        self._log_limit_bytes = log_limit_bytes
        self._history: list[Record] | None = [] if history else None
        self._started = False
        self.checkpoint: int | None = None  # the newest one that was found to be good
        self._layouts: dict[Digest, Layout] = {}  # the last used last

    @property
    def history(self) -> Sequence[Record]:
        """Every record of the log so far.  Raises ValueError unless `history` was asked for."""
        if self._history is None:
            raise ValueError("this reader keeps no records: open it with history=True")
        return tuple(self._history)

    def history_from(self, seq: int) -> Sequence[Record]:
        """Return the records from slot `seq` on, as `history` does."""
        if self._history is None:
            raise ValueError("this reader keeps no records: open it with history=True")
        return tuple(self._history[seq:])

    def refresh(
        self, progress: ReadProgress | None = None, *, one_version: bool = False
    ) -> tuple[Record, ...]:
        """Read the log to its end; return the records that were read and are new.

        With `one_version`, for who has followed the log to its end a moment ago, the first commit
        counts as the end: seeing that there is nothing behind it costs a round trip.

        `progress` is told how many records and bytes the log has so far, and which slot the hint
        says is taken.  Raises StoreError, RecordInvalid, Tampered or LogTooLong.  Records before
        the one at fault are in `state` by then, and the next call starts with the one at fault.
        """
        new = []
        known = -1
        if not self._started:
            if self.state.seq < 0:
                first = self.slot(0)
                if first is None:
                    return ()
                new.append(self._take(first))
            known = self._start()
        with closing(consecutive(self.slot, self.state.seq + 1, known=known)) as slots:
            for data in slots:
                new.append(self._take(data))
                if progress is not None:
                    progress(self.state.seq + 1, self.state.nbytes, known)
                if one_version and isinstance(new[-1].body, Commit):
                    break
        return tuple(new)

    def _start(self) -> int:
        """Go on from the newest checkpoint; return a slot that may well be taken."""
        start = find_start(self.store, self.state, self.slot, history=self._history is not None)
        self._started = True
        self.state, self.checkpoint = start.state, start.checkpoint
        return start.known

    def _take(self, data: bytes) -> Record:
        if self.state.nbytes + len(data) > self._log_limit_bytes:
            key = keys.log(self.state.seq + 1)
            raise LogTooLong(key, limit_bytes=self._log_limit_bytes)
        record, self.state = self.state.read(data)
        if self._history is not None:
            self._history.append(record)
        logger.debug("read record %d (%s)", record.seq, record.kind)
        return record

    def appended(self, record: Record, state: LogState) -> None:
        """Take over what this process has appended itself: `state` is the one after `record`."""
        self.state = state
        if self._history is not None:
            self._history.append(record)

    def slot(self, seq: int) -> bytes | None:
        """Return the bytes in one slot of the log, unverified; None when it is free."""
        key = keys.log(seq)
        try:
            return self.store.get(key, limit_bytes=RECORD_LIMIT_BYTES)
        except NotFound:
            return None
        except ObjectTooLarge as error:
            raise RecordInvalid(key, f"expected at most {RECORD_LIMIT_BYTES} bytes") from error

    def layout(self, digest: Digest) -> Layout:
        """Return a layout.  Raises StoreError, Tampered or RecordInvalid."""
        layout = self._layouts.pop(digest, None)
        if layout is None:
            layout = parse_layout(digest, self.stored_layout(digest))
        self._layouts[digest] = layout
        if len(self._layouts) > _LAYOUTS_KEPT:  # each side file that changes makes a new one
            del self._layouts[next(iter(self._layouts))]
        return layout

    def manifest(self, digest: Digest) -> Manifest:
        """Return a manifest.  Raises StoreError, Tampered or RecordInvalid."""
        return parse_manifest(digest, self.stored_manifest(digest))

    def stored_layout(self, digest: Digest) -> bytes:
        """Return a layout as it is stored, for `parse_layout`.  Raises StoreError or Tampered."""
        return self._named(keys.layout(digest), digest, LAYOUT_LIMIT_BYTES)

    def stored_manifest(self, digest: Digest) -> bytes:
        """Return a manifest as it is stored, for `parse_manifest`.  Raises as `stored_layout`."""
        return self._named(keys.manifest(digest), digest, STORED_MANIFEST_LIMIT_BYTES)

    def read(self, ref: ObjectRef) -> bytes:
        """Return a whole object.  Raises StoreError, or Tampered when size or digest differ."""
        try:
            data = self._named(ref.key, ref.digest, ref.size)
        except ObjectTooLarge as error:
            found = "more" if error.found is None else f"{error.found} bytes"
            raise Tampered(ref.key, expected=f"{ref.size} bytes", found=found) from error
        if len(data) != ref.size:
            expected, found = f"{ref.size} bytes", f"{len(data)} bytes"
            raise Tampered(ref.key, expected=expected, found=found)
        return data

    def pieces(self, ref: ObjectRef) -> Iterator[bytes]:
        """Yield a whole object piece by piece, unverified until the end has been reached.

        Raises what `read` raises; Tampered for another digest comes after the last piece.
        """
        stream = DigestStream()
        size = self._awaited(ref.key, lambda: self.store.size(ref.key))
        if size != ref.size:
            raise Tampered(ref.key, expected=f"{ref.size} bytes", found=f"{size} bytes")
        try:
            for piece in self.store.stream(ref.key, 0, ref.size):
                stream.update(piece)
                yield piece
        except ShortObject as error:
            raise Tampered(ref.key, expected=f"{ref.size} bytes", found="fewer") from error
        if stream.digest() != ref.digest:
            raise Tampered(ref.key, expected=ref.digest, found=stream.digest())

    def full_file(self, full: Full, file: FileRef) -> ObjectRef:
        """Return where one file of a full version is stored."""
        return full.ref(file)

    def _named(self, key: str, digest: Digest, limit_bytes: int) -> bytes:
        """Return the object at `key`, which a verified record names by `digest`."""
        data = self._awaited(key, lambda: self.store.get(key, limit_bytes=limit_bytes))
        found = digest_bytes(data)
        if found != digest:
            raise Tampered(key, expected=digest, found=found)
        return data

    def _awaited(self, key: str, ask: Callable[[], T]) -> T:
        for attempt in self._wait.attempts():
            try:
                return ask()
            except NotFound:
                if attempt == 0:
                    logger.info("%s is named but not there yet, waiting", key)
        raise NotFound(key, waited_s=self._wait.limit_s)


def parse_layout(digest: Digest, data: bytes) -> Layout:
    """Parse what is stored as a layout.  Raises RecordInvalid."""
    try:
        return Layout.from_bytes(data)
    except FormatError as error:
        raise RecordInvalid(keys.layout(digest), error.rule) from error


def parse_manifest(digest: Digest, data: bytes) -> Manifest:
    """Parse what is stored as a manifest.  Raises RecordInvalid."""
    return Manifest.from_bytes(data, what=keys.manifest(digest))
