"""Deadlines of local rounds, from each worker's own measured times (host world).

There is no timeout to tune. A lower bound keeps a worker whose times hardly vary from
being lost when the host is slow for a moment.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

from hetjax.machine.types import LocalRound, WorkerInfo

DEVIATIONS = 8.0  # median deviations above the median
LEAST_FACTOR = 5.0  # times the median, at least
ALLOWANCE = 1.0  # [s] on top, for the delays of a busy host
UNMEASURED_FACTOR = 20.0  # on expected seconds, for a worker with few measured rounds
ENOUGH_ROUNDS = 5  # measured rounds before a worker's own times are used
RECENT_ROUNDS = 50  # latest rounds that count
UPDATE_EVERY = 10  # rounds after which a worker's limit is computed again


class Deadlines:
    """Deadlines of the local rounds of every worker.

    With x = seconds / expected seconds over a worker's last rounds, a round of s
    expected seconds may take

        s max(median(x) + 8 median |x - median(x)|, 5 median(x)) + 1 s
    """

    def __init__(self, workers: Sequence[WorkerInfo], allowance: float = ALLOWANCE):
        """Start without measurements: only the expected seconds of the infos count.

        `allowance` [s] is added to the deadline of every round: the 1 s above.
        """
        self._allowance = allowance
        self._workers = workers
        self._ratios = [deque[float](maxlen=RECENT_ROUNDS) for _ in workers]
        self._counts = [0] * len(workers)
        self._limits = [UNMEASURED_FACTOR] * len(workers)  # times the expected seconds

    def expected(self, worker: int, local_round: LocalRound) -> float:
        """Return the seconds that a local round is expected to take."""
        return local_round.seconds + local_round.local_steps * self._workers[
            worker
        ].seconds(local_round.size)

    def observe(self, worker: int, local_round: LocalRound, seconds: float) -> None:
        """Record the measured seconds of a worker's round."""
        expected = self.expected(worker, local_round)
        if expected <= 0:
            return
        self._ratios[worker].append(seconds / expected)
        self._counts[worker] += 1
        if (
            self._counts[worker] < ENOUGH_ROUNDS
            or self._counts[worker] % UPDATE_EVERY == ENOUGH_ROUNDS
        ):
            self._limits[worker] = self._limit(self._ratios[worker])

    def usual(self, worker: int, local_round: LocalRound) -> float:
        """Return the seconds that a local round usually takes."""
        return median(self._ratios[worker] or [1.0]) * self.expected(
            worker, local_round
        )

    def double(self, worker: int) -> None:
        """Double the deadline of a worker that answered too late.

        The worker is slower than its earlier rounds suggest. They are discarded, and
        the doubled limit holds until enough new rounds are measured.
        """
        self._ratios[worker].clear()
        self._counts[worker] = 0
        self._limits[worker] *= 2

    def discard(self, worker: int) -> None:
        """Discard the measurements of a worker, which has a new process."""
        self._ratios[worker].clear()
        self._counts[worker] = 0
        self._limits[worker] = UNMEASURED_FACTOR

    def allowed(self, worker: int, local_round: LocalRound) -> float:
        """Return the seconds that a round may take before its worker counts as lost."""
        return (
            self._limits[worker] * self.expected(worker, local_round) + self._allowance
        )

    def _limit(self, seen: Sequence[float]) -> float:
        if len(seen) < ENOUGH_ROUNDS:
            return UNMEASURED_FACTOR * max([1.0, *seen])
        middle = median(seen)
        deviation = median(abs(x - middle) for x in seen)
        return max(middle + DEVIATIONS * deviation, LEAST_FACTOR * middle)
