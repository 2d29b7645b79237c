"""Memory for copies that come and go at every step: fresh memory costs as much as the copy itself.

A process gets new memory page by page, at the first touch of each page.
"""

from __future__ import annotations

import weakref

import numpy as np

from skerry.codec.digest import Bytes


class Buffers:
    """Buffers of one size, each used again once nobody refers to any part of it."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[Bytes] = []

    def take(self) -> Bytes:
        """Return a buffer, shape [nbytes], with whatever bytes."""
        memory = self._free.pop() if self._free else np.empty(self._nbytes, np.uint8)
        # Views of this array keep it alive, and know of nothing below it: when the last of them is
        # gone, so is it, and the memory is free.
        whole: Bytes = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(whole, self._free.append, memory).atexit = False
        return whole
