"""How far a long job has come: reported to whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from skerry.codec.digest import Bytes
from skerry.codec.tensors import Read, TensorSpec

Progress = Callable[[str, int, int], None]  # phase, bytes done, bytes in all


def silent(phase: str, done: int, total: int) -> None:
    """Report to nobody."""


class Meter:
    """Counts the bytes of one phase as they are read."""

    def __init__(self, progress: Progress, phase: str, total: int) -> None:
        self._progress = progress
        self._phase = phase
        self._total = total
        self._done = 0
        progress(phase, 0, total)

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        self._progress(self._phase, self._done, self._total)

    def read(self, read: Read) -> Read:
        """Return `read` with every tensor counted."""

        def counted(spec: TensorSpec) -> Bytes:
            data = read(spec)
            self.add(spec.nbytes)
            return data

        return counted

    def chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield `chunks`, each counted once it was taken."""
        for chunk in chunks:
            yield chunk
            self.add(len(chunk))
