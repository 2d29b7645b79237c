"""What one publish did, with every size that a figure is made of."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from skerry.codec.digest import Digest
from skerry.codec.level import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """One version, as it was committed.

    `elements` counts all elements of all tensors, changed or not; `changed` is None for a version
    that was not compared with a parent.  `raw_bytes` are the changed elements' own bytes,
    `patch_bytes` those of the patch, `full_bytes` those of the whole directory.  What a follower
    downloads for a patch is `patch_bytes + record_bytes`.  `level` is that of the patch, None for a
    version that was not compared; `level_reason` says why it was this one.
    """

    version: int
    parent: int | None
    step: int
    digest: Digest  # of the weights
    kind: str
    reason: str
    elements: int
    changed: int | None
    raw_bytes: int | None
    patch_bytes: int | None
    full_bytes: int
    record_bytes: int
    level: Level | None
    level_reason: str | None
    seconds: Mapping[str, float]

    @property
    def share(self) -> float | None:
        """Changed elements over all elements."""
        if self.changed is None:
            return None
        return self.changed / self.elements if self.elements else 0.0

    @property
    def bytes_per_changed(self) -> float | None:
        """All that a follower downloads, over the changed elements; None without any."""
        if self.patch_bytes is None or not self.changed:
            return None
        return (self.patch_bytes + self.record_bytes) / self.changed


class Clock:
    """Seconds of wall time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start
