"""Compaction and collection beside a running publisher, between its versions.

Compaction comes first, so that what a collection retires is no longer the cheapest way anywhere.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from skerry.bulletin.errors import BulletinError, Fenced, StoreUnsafe
from skerry.bulletin.writer import BulletinWriter
from skerry.codec.errors import CodecError
from skerry.publisher.collect import Collector, Turn
from skerry.publisher.compact import Compactor
from skerry.publisher.errors import PublisherError
from skerry.publisher.storage import MemoryStorage, Storage
from skerry.publisher.survey import RetentionPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepPolicy:
    """What a publisher does for its run beside publishing, every `interval_s`.

    `retention` None: nothing is collected.  `compact` makes skip patches; it keeps a second copy of
    the weights.
    """

    retention: RetentionPolicy | None = None
    compact: bool = True
    interval_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.interval_s > 0:
            raise ValueError(f"interval_s: expected more than 0, found {self.interval_s}")


class Upkeep:
    """A thread that works beside a publisher; both hold `turn` for what they append."""

    def __init__(
        self,
        writer: BulletinWriter,
        policy: UpkeepPolicy,
        turn: Turn,
        *,
        storage: Storage | None = None,
        threads: int = 1,
    ) -> None:
        self._policy = policy
        self._writer = writer
        self._stopping = threading.Event()
        self._compactor = self._collector = None
        if policy.compact:
            storage = storage or MemoryStorage()
            self._compactor = Compactor(writer, storage, threads=threads, turn=turn)
        if policy.retention is not None:
            self._collector = Collector(writer, policy.retention, turn=turn)
        self._thread = threading.Thread(target=self._run, name="skerry-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the skip or the sweep under way.  Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def work(self) -> None:
        """Make every skip that is missing, then collect.  Raises what these raise."""
        if self._compactor is not None:
            for base, version in self._compactor.missing():
                if self._stopping.is_set():
                    return
                self._compactor.make(base, version)
        if self._collector is not None:
            self._collector.retire()
            self._collector.sweep()

    def _run(self) -> None:
        while not self._stopping.wait(self._policy.interval_s):
            try:
                self.work()
            except (Fenced, StoreUnsafe) as error:
                logger.error("upkeep has stopped: %s", error)
                return
            except (BulletinError, PublisherError, CodecError, OSError) as error:
                logger.warning("upkeep is tried again later: %r", error)
