"""Reading consecutive slots of a log, the next ones while one is looked at.

Law: what is yielded is what reading one slot after the other gives, errors included.  How many are
asked for at once follows from what was found, so a follower that is up to date asks for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor

MOST_AT_ONCE = 64  # records have at most 1 MiB


def consecutive(
    read: Callable[[int], bytes | None], first: int, *, known: int = -1
) -> Generator[bytes, None, None]:
    """Yield slot `first` and those after it, up to the first free one.

    `known` is a slot that is said to be taken: up to there nothing is held back.  Close the
    iterator; it waits for the requests that are under way.
    """
    pending: deque[Future[bytes | None]] = deque()
    pool: ThreadPoolExecutor | None = None
    at = first
    try:
        while True:
            # Up to `known`, then half of what was found behind it: few requests too many at the
            # end, few round trips before it.
            ahead = known - at + 1 if at <= known else (at - max(first, known + 1)) // 2
            window = min(MOST_AT_ONCE, max(1, ahead))
            if window == 1 and not pending:
                data = read(at)
            else:
                pool = pool or ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="read-ahead")
                while len(pending) < window:
                    pending.append(pool.submit(read, at + len(pending)))
                data = pending.popleft().result()
            if data is None:
                return
            at += 1
            yield data
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
