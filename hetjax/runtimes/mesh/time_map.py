"""Times that were planned, and what they turned out to be."""

from array import array

import numpy as np

from hetjax.checkpointable import Checkpointable


class TimeMap(Checkpointable):
    """Maps the planned times of a clock [s] to the true ones, which it learns later.

    A clock adds intervals, which it planned one behind the other; times within one are
    moved with it, in proportion.
    """

    changes = ("planned", "true")

    def __init__(self):
        """Start at 0 s, which is 0 s."""
        self.planned, self.true = array("d", [0.0]), array("d", [0.0])

    def __call__(self, planned: np.ndarray) -> np.ndarray:
        """The true times of planned ones, of intervals that are known."""
        return np.interp(planned, self.planned, self.true)

    @property
    def intervals(self) -> int:
        """How many were added."""
        return (len(self.true) - 1) // 2

    @property
    def end(self) -> float:
        """The true end of the last interval [s]."""
        return self.true[-1]

    @end.setter
    def end(self, true: float) -> None:
        self.true[-1] = true

    def add(self, start: float, end: float, seconds: float) -> None:
        """Add an interval, which was planned; it took so many seconds.

        It followed the one before at once.
        """
        self.planned.extend((start, end))
        self.true.extend((self.end, self.end + seconds))

    def start_at(self, time: float) -> None:
        """Start at `time` [s]; times before it are final."""
        self.planned, self.true = array("d", [0.0, time]), array("d", [0.0, time])
