"""Seconds of a run from stamps of `time.perf_counter`, without its pauses."""

import bisect


class Stopwatch:
    """Runs from a stamp on; what lies within a pause is as if there were none."""

    def __init__(self, origin: float):
        """The stamp at which it is 0 s."""
        self._origin = origin
        self._resumed: list[float] = []  # stamps: ends of the pauses
        self._paused = [0.0]  # [s] of all pauses before each of them, and in all

    def time_of(self, stamp: float) -> float:
        """The run's time [s] of a stamp."""
        pauses = bisect.bisect_right(self._resumed, stamp)
        return stamp - self._origin - self._paused[pauses]

    def add_pause(self, since: float, until: float) -> None:
        """What lies between these stamps was a pause."""
        self._resumed.append(until)
        self._paused.append(self._paused[-1] + until - since)
