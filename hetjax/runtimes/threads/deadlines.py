"""How long to wait for a worker: a deadline from its own measured times (host world).

There is no timeout to tune. A worker that always takes equally long is given a floor,
so that a hiccup of the host does not cost it its place.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

from hetjax.machine.types import LocalRound, WorkerInfo

DEVIATIONS = 8.0  # median deviations above the median
FLOOR = 5.0  # times the median, at least
HICCUP = 1.0  # [s] on top: what a busy host may take at any time
UNKNOWN = 20.0  # times what is expected, of a worker that was hardly seen yet
ENOUGH = 5  # works, to know a worker
RECENT = 50  # works that count
EVERY = 10  # works after which a worker is judged anew


class Deadlines:
    """Deadlines of the works of every worker.

    x = seconds / expected seconds, over a worker's last works; a work of s expected
    seconds may take

        s max(median(x) + 8 median |x - median(x)|, 5 median(x)) + 1 s
    """

    def __init__(self, workers: Sequence[WorkerInfo]):
        """Nothing was measured yet but what the infos expect."""
        self._workers = workers
        self._seen = [deque[float](maxlen=RECENT) for _ in workers]
        self._counts = [0] * len(workers)
        self._limits = [UNKNOWN] * len(workers)  # times the expected seconds

    def expected(self, worker: int, local_round: LocalRound) -> float:
        """Seconds that a work is expected to take."""
        return local_round.seconds + local_round.local_steps * self._workers[
            worker
        ].seconds(local_round.size)

    def observe(self, worker: int, local_round: LocalRound, seconds: float) -> None:
        """A worker took so long."""
        expected = self.expected(worker, local_round)
        if expected <= 0:
            return
        self._seen[worker].append(seconds / expected)
        self._counts[worker] += 1
        if self._counts[worker] < ENOUGH or self._counts[worker] % EVERY == ENOUGH:
            self._limits[worker] = self._limit(self._seen[worker])

    def usual(self, worker: int, local_round: LocalRound) -> float:
        """Seconds that a work usually takes."""
        return median(self._seen[worker] or [1.0]) * self.expected(worker, local_round)

    def doubled(self, worker: int) -> None:
        """A worker answered behind its deadline: it was taken to be faster than it is.

        What it took before tells nothing any more; it has twice the time until it is
        known anew.
        """
        self._seen[worker].clear()
        self._counts[worker] = 0
        self._limits[worker] *= 2

    def allowed(self, worker: int, local_round: LocalRound) -> float:
        """Seconds that a work may take."""
        return self._limits[worker] * self.expected(worker, local_round) + HICCUP

    def _limit(self, seen: Sequence[float]) -> float:
        if len(seen) < ENOUGH:
            return UNKNOWN * max([1.0, *seen])
        middle = median(seen)
        deviation = median(abs(x - middle) for x in seen)
        return max(middle + DEVIATIONS * deviation, FLOOR * middle)
