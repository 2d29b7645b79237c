"""Putting one record into one slot of the log, until the outcome is known.

Law: the same bytes are repeated for as long as the outcome is unknown, so a record lands once or
not at all, and what is returned is what the slot holds from now on.
"""

from __future__ import annotations

import logging

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    AlreadyExists,
    NotFound,
    ObjectTooLarge,
    OutcomeUnknown,
    StoreUnavailable,
    StoreUnsafe,
)
from skerry.bulletin.patience import Patience
from skerry.bulletin.records import RECORD_LIMIT_BYTES
from skerry.bulletin.store import ObjectStore

logger = logging.getLogger(__name__)


def fill_slot(store: ObjectStore, seq: int, data: bytes, patience: Patience) -> bytes:
    """Put `data` into slot `seq` if it is free; return what the slot holds.

    The slot is read back in any case: after a lost reply, "taken" may be our own success, and a
    success that is not there afterwards shows a store that ignores conditions.  Raises StoreUnsafe,
    StoreDenied, or OutcomeUnknown when patience ends first.
    """
    key = keys.log(seq)
    last = ""
    for _ in patience.attempts():
        created = False
        try:
            store.put_if_absent(key, data)
            created = True
        except AlreadyExists:
            pass
        except (OutcomeUnknown, StoreUnavailable) as error:
            logger.warning("outcome unknown, repeating the same bytes: %s", error)
            last = f": {error}"
            continue
        try:
            found = store.get(key, limit_bytes=RECORD_LIMIT_BYTES)
        except (NotFound, StoreUnavailable) as error:
            last = f": {error}"
            continue  # not visible yet; repeating the put cannot do harm
        except ObjectTooLarge as error:
            raise StoreUnsafe(key, f"holds no record: {error}") from error
        if created and found != data:
            raise StoreUnsafe(key, "was replaced right after it was created")
        return found
    raise OutcomeUnknown(key, f"no answer in {patience.limit_s:g} s{last}")
