"""Publishing beside training: `publish(step)` returns once the weights are copied.

One thread digests, encodes, uploads and commits, in the order of the steps; training has the
processors first.  Law: every step that
was accepted becomes a version, or is superseded by a newer one where the policy says so, or its
failure is raised by the next call, once.  A version is never made of anything but the copy that
was taken in `publish`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Generic, Self, TypeVar

from skerry.publisher.errors import PublishFailed
from skerry.publisher.threads import give_way

logger = logging.getLogger(__name__)

Snapshot = TypeVar("Snapshot")
Report = TypeVar("Report")


class Backlog(StrEnum):
    """What `publish` does when as many copies wait as may.

    WAIT: it waits, and every step becomes a version.  COALESCE: the oldest waiting copy is given up
    for the new one, and versions skip steps; training never waits for the store.
    """

    WAIT = "wait"
    COALESCE = "coalesce"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogPolicy:
    """At most `waiting` copies wait while one is published: so many and one more are in memory.

    One waiting copy absorbs a slow version; more than that only hides a store that is too slow.
    """

    when_full: Backlog = Backlog.WAIT
    waiting: int = 1

    def __post_init__(self) -> None:
        if self.waiting < 1:
            raise ValueError(f"waiting: expected 1 or more, found {self.waiting}")


class BackgroundPublisher(Generic[Snapshot, Report]):
    """Copies the weights at every step and publishes the copies on a thread of its own.

    `publish`, `flush` and `close` belong to one thread, the trainer's.
    """

    def __init__(
        self,
        publish: Callable[[Snapshot, int], Report],
        snapshot: Callable[[], Snapshot],
        *,
        policy: BacklogPolicy | None = None,
        published: Callable[[Report], None] = lambda report: None,
        meet: Callable[[int | None], int | None] = lambda failed: failed,
    ) -> None:
        """`snapshot` returns copies in served precision, which nobody writes to any more.

        `publish` makes a version of one and of its step.  `published` is told of every version, on
        the publishing thread.  `meet` is given the oldest step that failed here, and returns the
        oldest that failed on any rank: all ranks raise it at the same call.
        """
        self._publish = publish
        self._snapshot = snapshot
        self._policy = policy or BacklogPolicy()
        self._published = published
        self._meet = meet
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Snapshot]] = deque()
        self._at_work: int | None = None  # the step
        self._failures: deque[PublishFailed] = deque()  # not yet raised
        self._superseded: list[int] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="skerry-publish", daemon=True)
        self._thread.start()

    @property
    def superseded(self) -> tuple[int, ...]:
        """The steps that were given up for newer ones, so far."""
        with self._changed:
            return tuple(self._superseded)

    def publish(self, step: int) -> None:
        """Copy the weights; they become a version while training goes on.

        Raises PublishFailed for an earlier step, once: this one is not taken then, and calling
        again takes it.  What `snapshot` raises comes as it is.
        """
        with self._changed:
            self._check_open()
            if self._policy.when_full is Backlog.WAIT:
                self._changed.wait_for(lambda: bool(self._failures) or not self._full())
        self._raise_failure()
        weights = self._snapshot()
        with self._changed:
            while self._full():  # only where copies are given up: nobody else adds any
                given_up, _ = self._waiting.popleft()
                self._superseded.append(given_up)
                logger.info("step %d is superseded by step %d", given_up, step)
            self._waiting.append((step, weights))
            self._changed.notify_all()

    def flush(self) -> None:
        """Return once nothing waits and nothing is being published.

        Raises PublishFailed as soon as a step fails; what waits is published all the same.
        """
        with self._changed:
            self._check_open()
            self._changed.wait_for(lambda: bool(self._failures) or self._idle())
        self._raise_failure()

    def close(self) -> None:
        """Publish what waits, then end the thread.

        Raises a failure that was not raised yet; calling again raises the next, or nothing.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except PublishFailed as failure:
            if error is None:
                raise
            logger.error("%s", failure)  # what ends the block is the error that counts

    def _full(self) -> bool:
        return len(self._waiting) >= self._policy.waiting

    def _idle(self) -> bool:
        return not self._waiting and self._at_work is None

    def _is_open(self, step: int) -> bool:
        return step == self._at_work or any(step == number for number, _ in self._waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this publisher is closed")

    def _raise_failure(self) -> None:
        """Raise the oldest failure that was not raised yet, if there is one anywhere."""
        with self._changed:
            mine = self._failures[0].step if self._failures else None
        step = self._meet(mine)
        if step is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open(step))
            if self._failures and self._failures[0].step == step:
                raise self._failures.popleft()
        raise PublishFailed(step=step, why="it failed on another rank")

    def _run(self) -> None:
        give_way()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._waiting))
                if not self._waiting:
                    return
                step, weights = self._waiting.popleft()
                self._at_work = step
                self._changed.notify_all()
            failure = self._attempt(step, weights)
            del weights  # the next copy must not find this one still in memory
            with self._changed:
                self._at_work = None
                if failure is not None:
                    self._failures.append(failure)
                self._changed.notify_all()

    def _attempt(self, step: int, weights: Snapshot) -> PublishFailed | None:
        try:
            self._published(self._publish(weights, step))
        except Exception as error:  # the one boundary: whatever it was, the trainer is told
            logger.warning("step %d is not published: %r", step, error)
            failure = PublishFailed(step=step, why=repr(error))
            failure.__cause__ = error
            return failure
        return None
