"""Appending to a log as the writer of one epoch, fenced, with no clock and no lease.

Law: whatever a store loses, delays or answers twice, an append that returns is in the log exactly
once, and a writer whose epoch has passed never appends again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    BulletinError,
    CommitConflict,
    Fenced,
    KeyMismatch,
    RecordInvalid,
    StoreUnsafe,
    Tampered,
)
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Body, Fence, Record
from skerry.bulletin.signing import Signer
from skerry.bulletin.slot import fill_slot
from skerry.bulletin.state import LogState
from skerry.codec.digest import digest_bytes

logger = logging.getLogger(__name__)

_FENCE_ATTEMPTS = 128  # a busy writer wins most races for a while


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A record whose put has begun: its bytes, and what is true once it is in the log."""

    record: Record
    data: bytes
    after: LogState
    signer: Signer | None


class Appender:
    """One writer's claim on the log that `reader` follows; `epoch` is 0 until it is opened.

    After Fenced or StoreUnsafe it is stopped: every later call raises the same error.  After
    OutcomeUnknown nothing else can be appended until `settle` has found out.
    """

    def __init__(
        self,
        reader: BulletinReader,
        *,
        signer: Signer | None,
        writer: str,
        patience: Patience,
        nonce: Callable[[], str],
        now: Callable[[], int],
    ) -> None:
        self.epoch = 0
        self._reader = reader
        self._signer = signer
        self._writer = writer
        self._patience = patience
        self._nonce = nonce
        self._now = now
        self._pending: _Pending | None = None
        self._stopped: BulletinError | None = None

    def open_epoch(self) -> None:
        """Append a fence above the newest epoch.  Raises KeyMismatch or CommitConflict."""
        for _ in range(_FENCE_ATTEMPTS):
            self._reader.refresh()
            self._check_signer()
            self.epoch = self._reader.state.epoch + 1
            key = None if self._signer is None else self._signer.public_key
            fence = self._prepare(Fence(key=key), self._signer)
            seq = fence.record.seq
            if fill_slot(self._reader.store, seq, fence.data, self._patience) == fence.data:
                self._reader.appended(fence.record, fence.after)
                logger.info("%s opened epoch %d in slot %d", self._writer, self.epoch, seq)
                return
        raise CommitConflict(f"{_FENCE_ATTEMPTS} times another record took the slot of the fence")

    def append(self, body: Body, *, next_signer: Signer | None = None) -> Record:
        """Append one record; `next_signer` signs the records after it.

        Raises CommitConflict (nothing was written), and what `settle` raises.
        """
        self.check_running()
        if self._pending is not None:
            seq = self._pending.record.seq
            raise CommitConflict(f"the outcome of slot {seq} is unknown: settle it first")
        self._check_head()
        try:
            self._pending = self._prepare(body, next_signer or self._signer)
        except RecordInvalid as error:
            raise CommitConflict(error.rule) from error
        return self._finish(self._pending)

    def settle(self) -> Record | None:
        """Find out about the append whose outcome is unknown, by repeating the same bytes.

        Returns its record, which is in the log now, or None when nothing was open.  Raises Fenced
        (it is not in the log, and never will be), StoreUnsafe, or OutcomeUnknown again.
        """
        self.check_running()
        return None if self._pending is None else self._finish(self._pending)

    @property
    def signer(self) -> Signer | None:
        """Who signs the next record."""
        return self._signer

    def check_running(self) -> None:
        """Raises what stopped this writer, if anything did."""
        if self._stopped is not None:
            raise self._stopped

    def _finish(self, pending: _Pending) -> Record:
        record = pending.record
        try:
            found = fill_slot(self._reader.store, record.seq, pending.data, self._patience)
        except StoreUnsafe as alarm:
            self._stop(alarm)
            raise
        if found != pending.data:
            raise self._stop(self._judge(record, found))
        self._pending = None
        self._signer = pending.signer
        self._reader.appended(record, pending.after)
        logger.info("appended %s in slot %d: %s", record.kind, record.seq, pending.after.head)
        return record

    def _prepare(self, body: Body, signer_after: Signer | None) -> _Pending:
        """Build the next record and apply it to our own view of the log: every rule is checked."""
        state = self._reader.state
        record = Record(
            seq=state.seq + 1,
            prev=state.head,
            epoch=self.epoch,
            writer=self._writer,
            nonce=self._nonce(),
            time=self._now(),
            body=body,
        )
        if self._signer is not None:
            record = record.signed(self._signer)
        data = record.to_bytes()
        return _Pending(record=record, data=data, after=state.apply(data), signer=signer_after)

    def _judge(self, record: Record, found: bytes) -> BulletinError:
        """Say what it means that another record is where ours should be."""
        key = keys.log(record.seq)
        try:
            other, _ = self._reader.state.read(found)
        except (RecordInvalid, Tampered) as error:
            return StoreUnsafe(key, f"holds neither our record nor a valid one: {error}")
        if other.epoch > self.epoch:
            return Fenced(epoch=self.epoch, found=other.epoch, writer=other.writer)
        return StoreUnsafe(key, f"holds a {other.kind} of our epoch that we did not write")

    def _check_head(self) -> None:
        """A record of ours that was replaced shows a store that ignores conditions."""
        state = self._reader.state
        key = keys.log(state.seq)
        try:
            data = self._reader.slot(state.seq)
        except RecordInvalid as error:
            raise self._stop(StoreUnsafe(key, f"was replaced: {error.rule}")) from error
        found = None if data is None else digest_bytes(data)
        if found != state.head:
            rule = f"was replaced: expected digest {state.head}, found {found}"
            raise self._stop(StoreUnsafe(key, rule))

    def _check_signer(self) -> None:
        state = self._reader.state
        key = None if self._signer is None else self._signer.public_key
        if state.seq >= 0 and state.key != key:
            expected, found = (
                "no key (an unsigned run)" if k is None else f"key {k}" for k in (state.key, key)
            )
            raise KeyMismatch(expected=expected, found=found)

    def _stop(self, error: BulletinError) -> BulletinError:
        self._stopped = error
        logger.error("the writer of epoch %d has stopped: %s", self.epoch, error)
        return error
