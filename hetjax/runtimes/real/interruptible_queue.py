"""A queue whose blocking `get` can be interrupted by signals.

`queue.SimpleQueue.get(timeout=...)` waits forever (at least in CPython 3.11 to 3.13) if
a signal handler returns after the timeout: it continues with a negative one. Waiting
for a lock does not have this bug.
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
    """A first-in, first-out queue for several producers and one waiting thread."""

    def __init__(self):
        """Start without items."""
        self._items: deque[Item] = deque()
        self._news = threading.Lock()  # free if an item was put since the last wait
        self._news.acquire()

    def put(self, item: Item) -> None:
        """Append an item and wake the waiting thread."""
        self._items.append(item)
        with suppress(RuntimeError):  # it is awake already
            self._news.release()

    def empty(self) -> bool:
        """Whether there is no item."""
        return not self._items

    def get(self, timeout: float = 0.0) -> Item:
        """Return the first item; raise Empty if none comes within `timeout` [s]."""
        deadline = time.perf_counter() + timeout
        while not self._items:
            left = max(0.0, deadline - time.perf_counter())
            if not self._news.acquire(timeout=left) and not self._items:
                raise Empty
        return self._items.popleft()
