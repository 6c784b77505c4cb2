"""The times of a mesh: planned ones, and true ones that are known later."""

from array import array

import numpy as np

from hetjax.checkpointable import Checkpointable

_NEW_WEIGHT = 0.3  # weight of the last launch in the ratio


class TimeMap(Checkpointable):
    """Maps the planned times of a clock [s] to the true ones, which it learns later.

    A clock adds intervals, which it planned one after the other; times within one are
    mapped linearly.
    """

    changes = ("planned", "true")

    def __init__(self):
        """Start with 0 s mapped to 0 s."""
        self.planned, self.true = array("d", [0.0]), array("d", [0.0])

    def __call__(self, planned: np.ndarray) -> np.ndarray:
        """The true times of planned ones, of intervals that are known."""
        return np.interp(planned, self.planned, self.true)

    @property
    def intervals(self) -> int:
        """The number of intervals added."""
        return (len(self.true) - 1) // 2

    @property
    def end(self) -> float:
        """The true end of the last interval [s]."""
        return self.true[-1]

    @end.setter
    def end(self, true: float) -> None:
        self.true[-1] = true

    def add(self, start: float, end: float, seconds: float) -> None:
        """Add an interval planned from `start` to `end`, which took `seconds`.

        It directly followed the previous interval.
        """
        self.planned.extend((start, end))
        self.true.extend((self.end, self.end + seconds))

    def start_at(self, time: float) -> None:
        """Start at `time` [s]; times before it are final."""
        self.planned, self.true = array("d", [0.0, time]), array("d", [0.0, time])


class RateEstimate(Checkpointable):
    """The ratio of true to planned seconds, which predicts the ends of supersteps.

    In a run of several processes, all must predict the same ends, which decide when to
    evaluate. They use the time stamps of process 0, which every launch broadcasts.
    """

    changes = ("ratio", "done")

    def __init__(self):
        """Start at 0 s, with a ratio of 1."""
        self.ratio = 1.0
        self.done = 0.0  # [s] end of the last launch that is done
        self._last: tuple[float, float] | None = None  # stamp and planned seconds

    def measure(self, planned: float, launched: float, done: float) -> None:
        """Record a launch of `planned` seconds, from `launched` to `done` [s].

        A launch without steps has 0 planned seconds and leaves the ratio as it is.
        """
        self._update(planned, done - max(self.done, launched))
        self.done = done

    def receive(self, planned: float, stamp: float) -> None:
        """Record a launch of `planned` seconds that process 0 began at `stamp` [s].

        Its end is an estimate until the next stamp arrives.
        """
        if self._last is not None:
            before, seconds = self._last
            self._update(seconds, stamp - before)
        self._last = stamp, planned
        self.done = stamp + self.ratio * planned

    def _update(self, planned: float, took: float) -> None:
        if planned:
            self.ratio += _NEW_WEIGHT * (max(took, 0.0) / planned - self.ratio)
