"""A queue at which one thread waits, also where signals come amid the wait.

`queue.SimpleQueue.get(timeout=...)` waits for ever (CPython 3.11 to 3.13, at least)
where a signal's handler returns after the timeout: it goes on with a negative one. The
wait for a lock does not.
"""

import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty
from typing import Generic, TypeVar

__all__ = ["Empty", "InterruptibleQueue"]

Item = TypeVar("Item")


class InterruptibleQueue(Generic[Item]):
    """Items in the order in which any threads put them, for one thread at a time."""

    def __init__(self):
        """Start without items."""
        self._items: deque[Item] = deque()
        self._news = threading.Lock()  # free when an item was put since the last wait
        self._news.acquire()

    def put(self, item: Item) -> None:
        """Append an item, and wake the thread that waits."""
        self._items.append(item)
        with suppress(RuntimeError):  # it is awake already
            self._news.release()

    def empty(self) -> bool:
        """Is there no item?"""
        return not self._items

    def get(self, timeout: float = 0.0) -> Item:
        """Return the first item; queue.Empty if none comes within `timeout` [s]."""
        deadline = time.perf_counter() + timeout
        while not self._items:
            left = max(0.0, deadline - time.perf_counter())
            if not self._news.acquire(timeout=left) and not self._items:
                raise Empty
        return self._items.popleft()
