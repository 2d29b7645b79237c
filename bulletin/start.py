"""Where a fresh reader goes on after slot 0: hint, checkpoint, and what to do without them.

Neither is needed and neither is believed: a checkpoint counts when the run's key signed it, it is
of this run, and the slot that it ends with holds the record that it ends with (a log that was put
back to an older copy would otherwise be taken up behind its end).  Each step is logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from skerry.bulletin import checkpoint, keys
from skerry.bulletin.errors import (
    BulletinError,
    InvalidKey,
    ListUnsupported,
    NotFound,
    StoreError,
)
from skerry.bulletin.hint import HINT_LIMIT_BYTES, Hint
from skerry.bulletin.state import LogState
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import digest_bytes

logger = logging.getLogger(__name__)

Slot = Callable[[int], bytes | None]

_TRIED = 3  # of the newest checkpoints in a list, how many are tried
_LISTED = 100_000  # keys that are looked at: a hostile list need not end


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The state to go on from, the checkpoint it is of, and a slot that the hint says is taken."""

    state: LogState
    checkpoint: int | None
    known: int


def find_start(store: ObjectStore, begun: LogState, slot: Slot, *, history: bool) -> Start:
    """Return where to go on after slot 0, which `begun` has read; with `history` that is slot 1."""
    hint = read_hint(store)
    known = -1 if hint is None else hint.seq
    if not history and begun.key is not None:
        for seq in _candidates(store, hint):
            state = _take(store, begun, slot, seq)
            if state is not None:
                logger.info("the log is read from the checkpoint of slot %d on", seq)
                return Start(state=state, checkpoint=seq, known=known)
        logger.info("no checkpoint to start from: the log is read from its first slot on")
    return Start(state=begun, checkpoint=None, known=known)


def read_hint(store: ObjectStore) -> Hint | None:
    """Return the hint, None when there is none or it makes no sense."""
    try:
        return Hint.parse(store.get(keys.HINT, limit_bytes=HINT_LIMIT_BYTES))
    except BulletinError as error:
        logger.info("no hint: %s", error)
        return None


def listed_checkpoints(store: ObjectStore) -> tuple[int, ...]:
    """Return the slots of the last few checkpoints, newest first.  Raises StoreError."""
    newest: deque[int] = deque(maxlen=_TRIED)
    for key in islice(store.list_after(keys.CHECKPOINT_PREFIX), _LISTED):
        try:
            newest.append(keys.parse_checkpoint(key))
        except InvalidKey:
            continue  # not ours to judge
    return tuple(reversed(newest))


def _candidates(store: ObjectStore, hint: Hint | None) -> Iterator[int]:
    """Yield slots that may have a checkpoint, the likeliest first."""
    hinted = None
    if hint is not None:
        hinted = hint.checkpoint
        if hinted is not None:
            yield hinted
        elif hint.seq < checkpoint.CHECKPOINT_INTERVAL:
            return  # the log is not as long as to have one
    try:
        yield from (seq for seq in listed_checkpoints(store) if seq != hinted)
    except ListUnsupported:
        logger.info("checkpoints cannot be looked for: the store has no list")
    except StoreError as error:
        logger.info("checkpoints cannot be looked for: %s", error)


def _take(store: ObjectStore, begun: LogState, slot: Slot, seq: int) -> LogState | None:
    key = keys.checkpoint(seq)
    try:
        data = store.get(key, limit_bytes=checkpoint.CHECKPOINT_LIMIT_BYTES)
        state = checkpoint.read(data, begun, seq=seq)
        last = slot(seq)
    except NotFound:
        logger.info("%s is not there", key)
        return None
    except BulletinError as error:
        logger.warning("%s is not used: %s", key, error)
        return None
    if last is None or digest_bytes(last) != state.head:
        found = "nothing" if last is None else f"record {digest_bytes(last)}"
        logger.warning("%s is not used: it ends with %s, the slot holds %s", key, state.head, found)
        return None
    return state
