"""Work on several threads whose results come in the order of the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_Outcome = tuple[list[Result], Exception | None]


def ordered(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, *, at_once: int = 1
) -> Generator[Result, None, None]:
    """Yield `work(item)` for each item, in order.

    Items are taken as threads come free, `at_once` by each, which is for work that takes little
    longer than handing it over.  One such group more than there are threads is in work or waits for
    its turn to be yielded.  The first error, of `work` or of `items`, is raised where its result
    would have come; the few items after it may have been begun.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="codec") as pool:
        running: deque[Future[_Outcome[Result]]] = deque()
        rest = iter(items)
        failure: Exception | None = None
        try:
            while failure is None:
                group: list[Item] = []
                try:
                    group.extend(islice(rest, at_once))
                except Exception as error:  # raised below, when its turn has come
                    failure = error
                if not group:
                    break
                running.append(pool.submit(_each, work, group))
                if len(running) > threads:
                    yield from _unpacked(running.popleft().result())
            while running:
                yield from _unpacked(running.popleft().result())
        finally:
            for future in running:
                future.cancel()
        if failure is not None:
            raise failure


def _each(work: Callable[[Item], Result], items: Iterable[Item]) -> _Outcome[Result]:
    """Return the results up to the first error, and that."""
    results: list[Result] = []
    try:
        results.extend(map(work, items))
    except Exception as error:
        return results, error
    return results, None


def _unpacked(outcome: _Outcome[Result]) -> Iterator[Result]:
    results, error = outcome
    yield from results
    if error is not None:
        raise error
