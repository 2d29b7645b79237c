"""Does a store keep the one promise that commits rest on?  Asked before a run is opened.

A passed probe is necessary, not sufficient: a store may honour a condition and still race.  What
the probe cannot see, the writer's checks of its own records raise as an alarm later.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StoreUnsafe,
)
from skerry.bulletin.patience import Patience
from skerry.bulletin.store import ObjectStore

RACERS = 4
RACES = 3
_BYTES = 2048  # the size of a small record


def probe_store(store: ObjectStore, *, nonce: Callable[[], str], patience: Patience) -> None:
    """Try conditional puts on scratch keys, and delete them.

    Raises StoreUnsafe when a condition is ignored, OutcomeUnknown when no answer came; only then
    the scratch key stays, because something may still land on it.
    """
    probe_conditions(store, nonce=nonce, patience=patience)
    probe_races(store, nonce=nonce, patience=patience)


def probe_conditions(store: ObjectStore, *, nonce: Callable[[], str], patience: Patience) -> None:
    """Does one conditional put after the other do what it should?  Raises as `probe_store`."""
    key = keys.probe(nonce())
    first, second = _body(1), _body(2)
    if not _created(store, key, first, patience):
        raise StoreUnsafe(key, "a conditional put of a fresh key was refused")
    if _created(store, key, second, patience):
        raise StoreUnsafe(key, "a conditional put of a taken key succeeded")
    if _content(store, key) != first:
        raise StoreUnsafe(key, "a refused conditional put changed the object")
    if store.size(key) != _BYTES:
        raise StoreUnsafe(key, f"expected {_BYTES} bytes, found {store.size(key)}")
    store.delete(key)


def probe_races(store: ObjectStore, *, nonce: Callable[[], str], patience: Patience) -> None:
    """Does exactly one of several at once succeed?  Raises as `probe_store`."""
    for _ in range(RACES):
        _race(store, keys.probe(nonce()), patience)


def _race(store: ObjectStore, key: str, patience: Patience) -> None:
    barrier = Barrier(RACERS)

    def attempt(racer: int) -> bool:
        barrier.wait()
        return _created(store, key, _body(racer), patience)

    with ThreadPoolExecutor(RACERS) as pool:
        winners = [racer for racer, won in enumerate(pool.map(attempt, range(RACERS))) if won]
    if len(winners) != 1:
        raise StoreUnsafe(key, f"{len(winners)} of {RACERS} racing conditional puts succeeded")
    if _content(store, key) != _body(winners[0]):
        raise StoreUnsafe(key, "a racing conditional put that was refused changed the object")
    store.delete(key)


def _body(writer: int) -> bytes:
    return bytes([writer]) * _BYTES


def _content(store: ObjectStore, key: str) -> bytes:
    try:
        return store.get(key, limit_bytes=_BYTES)
    except NotFound:
        raise StoreUnsafe(key, "an object that was just created is not there") from None


def _created(store: ObjectStore, key: str, data: bytes, patience: Patience) -> bool:
    """Put `data` until the outcome is known; return whether it is what created the object."""
    unknown, last = False, ""
    for _ in patience.attempts():
        try:
            store.put_if_absent(key, data)
        except (OutcomeUnknown, StoreUnavailable) as error:
            unknown, last = True, f": {error}"
        except AlreadyExists:
            # After a lost reply the taken key may be our own.
            return unknown and _content(store, key) == data
        else:
            return True
    rule = f"no answer to a conditional put in {patience.limit_s:g} s{last}"
    raise OutcomeUnknown(key, rule)
