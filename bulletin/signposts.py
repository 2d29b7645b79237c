"""What a writer leaves for fresh readers and for people after a record: none of it is the protocol.

In this order: a checkpoint when one is due, the hint that names it, the cost of the version.  Each
is best effort: a failure is logged and never fails the commit, which has happened by then.  A
process that dies in between leaves older ones, and those are as good, only further back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from skerry.bulletin import checkpoint, keys
from skerry.bulletin.cost import COST_LIMIT_BYTES, CostLog, VersionCost
from skerry.bulletin.errors import BulletinError, NotFound, StoreError
from skerry.bulletin.hint import Hint
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit, Record
from skerry.bulletin.signing import Signer
from skerry.bulletin.stores.metered import Metered, Usage
from skerry.codec.errors import LimitExceeded

logger = logging.getLogger(__name__)


class Signposts:
    """Puts them up for one writer, whose `reader` is at the newest record."""

    def __init__(self, store: Metered, reader: BulletinReader, *, since: Usage) -> None:
        self._store = store
        self._reader = reader
        self._since = since  # what was used when the version before, or opening the run, began
        self._costs: CostLog | None = None
        self._opened = True
        self._checkpoint = reader.checkpoint
        self._tried = -1 if reader.checkpoint is None else reader.checkpoint

    def put_up(self, record: Record, signer: Signer | None) -> None:
        """Leave what is due after `record`; `signer` is the one of the record to come."""
        seq, head = self._reader.state.seq, self._reader.state.head
        assert head is not None
        if signer is not None and seq - self._tried >= checkpoint.CHECKPOINT_INTERVAL:
            self._tried = seq  # one that failed is not tried again with every record
            if _managed("no checkpoint", lambda: self._put_checkpoint(seq, signer)):
                self._checkpoint = seq
        hint = Hint(seq=seq, digest=head, checkpoint=self._checkpoint)
        _managed("the hint stays behind", lambda: self._store.replace(keys.HINT, hint.to_bytes()))
        if isinstance(record.body, Commit):
            version = record.body.version
            _managed("the cost is not noted", lambda: self._note_cost(version))

    def _put_checkpoint(self, seq: int, signer: Signer) -> None:
        data = checkpoint.make(self._reader.state, signer)
        self._store.put(keys.checkpoint(seq), [data])
        logger.info("checkpoint of slot %d: %d bytes", seq, len(data))

    def _note_cost(self, version: int) -> None:
        now = self._store.usage()
        used, self._since = now - self._since, now
        opened, self._opened = self._opened, False
        if self._costs is None:
            self._costs = _noted(self._store)
        self._costs = self._costs.append(
            VersionCost(
                version=version,
                opened=opened,
                requests=dict(used.requests),
                bytes_up=used.bytes_up,
                bytes_down=used.bytes_down,
            )
        )
        self._store.replace(keys.COST, self._costs.to_bytes())


def _noted(store: Metered) -> CostLog:
    """Return the costs that an earlier writer noted; none if they make no sense."""
    try:
        return CostLog.parse(store.get(keys.COST, limit_bytes=COST_LIMIT_BYTES))
    except NotFound:
        return CostLog()
    except BulletinError as error:
        logger.warning("costs are noted anew: %s", error)
        return CostLog()


def _managed(failure: str, put: Callable[[], None]) -> bool:
    try:
        put()
    except (StoreError, LimitExceeded) as error:
        logger.warning("%s: %s", failure, error)
        return False
    return True
