"""Work that another thread does ahead of the one that uses it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

_Item = TypeVar("_Item")


class _End:
    """Behind the last item."""


_END: Final = _End()


def made_ahead(items: Iterable[_Item], count: int) -> Generator[_Item]:
    """The items of an iterable, which another thread makes: up to ``count`` of them while one
    is being used.

    What making one raises is raised in its place. Close it when it is not used to its end.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1, "rmqlog-ahead") as other_thread:
        waiting: deque[Future[_Item | _End]] = deque(
            other_thread.submit(_next, iterator) for _ in range(count)
        )
        try:
            while not isinstance(item := waiting.popleft().result(), _End):
                waiting.append(other_thread.submit(_next, iterator))
                yield item
        finally:
            for future in waiting:
                future.cancel()


def _next(iterator: Iterator[_Item]) -> _Item | _End:
    return next(iterator, _END)
