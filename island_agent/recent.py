"""What was found out a moment ago, so that many who ask cost one request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """Values that are known for `fresh_s` seconds, at most `most` of them; the oldest go first.

    Safe to use from several threads.
    """

    def __init__(self, *, fresh_s: float, most: int, clock: Callable[[], float]) -> None:
        self._fresh_s = fresh_s
        self._most = most
        self._clock = clock
        self._lock = Lock()
        self._found: OrderedDict[str, tuple[float, V]] = OrderedDict()

    def note(self, name: str, value: V) -> None:
        """Remember what was found just now."""
        with self._lock:
            self._found[name] = self._clock(), value
            self._found.move_to_end(name)
            if len(self._found) > self._most:
                self._found.popitem(last=False)

    def get(self, name: str) -> tuple[V] | None:
        """Return what was found, None if that is not known or too old."""
        with self._lock:
            noted = self._found.get(name)
            if noted is None or self._clock() - noted[0] >= self._fresh_s:
                return None
            return (noted[1],)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._found.clear()
