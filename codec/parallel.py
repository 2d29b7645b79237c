"""Work on several threads whose results come in the order of the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield `work(item)` for each item, in order.

    Items are taken as threads come free: one more than there are threads is in work or waits for
    its turn to be yielded.  The first error, of `work` or of `items`, is raised where its result
    would have come; the few items after it may have been begun.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="codec") as pool:
        running: deque[Future[Result]] = deque()
        rest = iter(items)
        failure: Exception | None = None
        try:
            while True:
                try:
                    item = next(rest)
                except StopIteration:
                    break
                except Exception as error:  # raised below, when its turn has come
                    failure = error
                    break
                running.append(pool.submit(work, item))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
        if failure is not None:
            raise failure
