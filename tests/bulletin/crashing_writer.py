"""A publisher process that kills itself at a given point of one commit.

`python -m tests.bulletin.crashing_writer ROOT request N` dies just before its N-th request to the
store, `… syscall N` just before the N-th system call of the record's conditional put, `… after N`
just before the N-th request after that put.  It exits with 0 when the commit has fewer points.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from skerry.bulletin.stores import open_store
from tests.bulletin.faults import FaultyStore, nothing
from tests.bulletin.runs import open_writer, publish

SYSCALLS = ("open", "write", "fsync", "link", "rename", "unlink", "close")


class Countdown:
    """Kills this process, as `kill -9` does, when it has been called for the N-th time."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def arm_requests(store: FaultyStore, count: int) -> None:
    countdown = Countdown(count)
    store.before = lambda verb, key: countdown()


def arm_syscalls(store: FaultyStore, count: int) -> None:
    countdown = Countdown(count)
    originals = {name: getattr(os, name) for name in SYSCALLS}

    def counted(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            countdown()
            return originals[name](*args, **kwargs)

        return call

    def before(verb: str, key: str) -> None:
        if verb == "put_if_absent":
            for name in SYSCALLS:
                setattr(os, name, counted(name))

    def after(verb: str, key: str) -> None:
        if verb == "put_if_absent":
            for name in SYSCALLS:
                setattr(os, name, originals[name])

    store.before, store.after = before, after


def arm_after(store: FaultyStore, count: int) -> None:
    countdown = Countdown(count)

    def landed(verb: str, key: str) -> None:
        if verb == "put_if_absent":
            store.before = lambda verb, key: countdown()

    store.after = landed


def main() -> None:
    root, point, count = sys.argv[1:]
    store = FaultyStore(open_store(root), before=nothing)
    writer = open_writer(store, writer="crashing")
    arm = {"request": arm_requests, "syscall": arm_syscalls, "after": arm_after}[point]
    arm(store, int(count))
    publish(writer, "one")


if __name__ == "__main__":
    main()
