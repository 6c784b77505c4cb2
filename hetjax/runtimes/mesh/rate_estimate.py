"""How fast waves pass, so that the end of a wave that is not launched is expected.

In a run of several processes all have to expect the same, since they decide on that
when to evaluate: then process 0's stamps count, which every launch carries to all.
"""

from hetjax.checkpointable import Checkpointable

_NEW = 0.3  # weight of the last launch in the ratio


class RateEstimate(Checkpointable):
    """The ratio of true to planned seconds, and when what is known to be done ended."""

    changes = ("ratio", "done")

    def __init__(self):
        """Start at 0 s, with planned seconds as they are."""
        self.ratio = 1.0
        self.done = 0.0  # [s]
        self._last: tuple[float, float] | None = None  # stamp and planned seconds

    def measure(self, planned: float, launched: float, done: float) -> None:
        """A launch of so many planned seconds was launched, and is done, then [s].

        0 planned seconds are those of a launch without steps, which tells nothing.
        """
        self._learn(planned, done - max(self.done, launched))
        self.done = done

    def hear(self, planned: float, stamp: float) -> None:
        """A launch of so many planned seconds is done; process 0 began it at `stamp`.

        Its end is expected, until the next stamp tells more.
        """
        if self._last is not None:
            before, seconds = self._last
            self._learn(seconds, stamp - before)
        self._last = stamp, planned
        self.done = stamp + self.ratio * planned

    def _learn(self, planned: float, took: float) -> None:
        if planned:
            self.ratio += _NEW * (max(took, 0.0) / planned - self.ratio)
