"""What a process holds, as the kernel tells it (Linux)."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from pathlib import Path

_LOOK_S = 0.005


def status_bytes(field: str, pid: int | str = "self") -> int:
    """Return a field of a process's status in bytes, 0 if it is not there any more."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (OSError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def trim() -> None:
    """Give freed heap back, where the C library can: it would be used again without being seen."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class MemorySampler:
    """Looks every few milliseconds at what a process holds, and keeps the most that it saw.

    Resident memory counts mapped files, anonymous memory does not.
    """

    def __init__(self, pid: int | str = "self") -> None:
        self.anonymous = self.resident = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.anonymous = max(self.anonymous, status_bytes("RssAnon", self._pid))
            self.resident = max(self.resident, status_bytes("VmRSS", self._pid))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
