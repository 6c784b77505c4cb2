"""Convert stamps of `time.perf_counter` to a run's seconds, without its pauses."""

import bisect


class Stopwatch:
    """A run's time from stamps; pauses do not count."""

    def __init__(self, origin: float):
        """Set the run's time to 0 s at the stamp `origin`."""
        self._origin = origin
        self._resumed: list[float] = []  # stamps at the ends of pauses
        self._paused = [0.0]  # [s] total of the first 0, 1, 2, ... pauses

    def time_of(self, stamp: float) -> float:
        """Return the run's time [s] at a stamp."""
        pauses = bisect.bisect_right(self._resumed, stamp)
        return stamp - self._origin - self._paused[pauses]

    def add_pause(self, since: float, until: float) -> None:
        """Record a pause between these stamps."""
        self._resumed.append(until)
        self._paused.append(self._paused[-1] + until - since)
