"""A merge on real devices that may still run when its workers begin their next rounds.

The host waits for it after these rounds are launched. It looks in between, as a merge
may be done long before the host has the time to wait.
"""

import time
from typing import Any

from hetjax.machine.merge_times import MergeTimes, Stamps


class LaunchedMerge:
    """A merge on one device, launched at `start`."""

    __slots__ = ("_done", "_finish", "_start")

    def __init__(self, start: float, done: Any):
        """`start` is a stamp of `time.perf_counter`; `done` is a result of the merge.

        The latter must not be donated to later programs.
        """
        self._start, self._done, self._finish = start, done, 0.0
        self.look()

    def look(self) -> None:
        """Note the time if the merge is done."""
        if not self._finish and self._done.is_ready():
            self._finish = time.perf_counter()

    @property
    def is_done(self) -> bool:
        """Whether the merge is done, so that `wait` returns at once."""
        self.look()
        return bool(self._finish)

    def wait(self) -> MergeTimes:
        """Wait until the merge is done; return when it was first seen to be."""
        self._done.block_until_ready()
        self.look()
        start, finish = self._start, self._finish
        return MergeTimes(Stamps(start, start, finish, finish))
