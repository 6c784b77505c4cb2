"""Workers, a clock and a server in plain Python: what the second oracles stand on.

They share nothing with hetjax: `Workers` is a clock of its own. Models are flat float64
vectors. Conventions: reports at equal times are dealt with one after another, lower
index first; a round draws its examples when it begins, also if it is cancelled later.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BYTES = 4  # of a parameter
START = np.array([1.0, -1.0])
TARGETS = np.array(
    [[[2.0, 0.0], [0.0, 1.0]], [[-1.0, 1.0], [1.0, -2.0]], [[0.5, 0.5], [-2.0, 0.0]]]
)


def vector_gradient(worker: int, t: int, x: np.ndarray) -> np.ndarray:
    """The t-th gradient of a worker at x: x - a_i[t mod 2]."""
    return x - TARGETS[worker, t % 2]


class Workers:
    """Workers with given seconds per step, and the gradients that they draw."""

    def __init__(
        self,
        seconds: Sequence[float],
        end: float,
        gradient: Callable[[int, int, np.ndarray], np.ndarray] = vector_gradient,
        start: np.ndarray = START,
    ):
        """Reports after `end` [s] are not heard."""
        self.seconds, self.end, self.now = tuple(seconds), end, 0.0
        self.gradient, self.start = gradient, start
        self.reports: list[tuple[float, int]] = []
        self.examples = 0  # of the rounds that were reported
        self._drawn = [0] * len(seconds)
        self._finish: dict[int, tuple[float, range]] = {}

    def __len__(self):
        return len(self.seconds)

    def eta(self, learning_rate: Any) -> float:
        """The learning rate of a round that begins now."""
        return (
            learning_rate(self.examples) if callable(learning_rate) else learning_rate
        )

    def draw(self, i: int, steps: int) -> range:
        """The numbers of a worker's next draws, one for each step."""
        first = self._drawn[i]
        self._drawn[i] += steps
        return range(first, first + steps)

    def begin(self, i: int, steps: int = 1) -> None:
        """Give a worker a round; it draws now."""
        assert i not in self._finish
        draws = self.draw(i, steps)
        self._finish[i] = self.now + steps * self.seconds[i], draws

    def cancel(self, i: int) -> None:
        """End a worker's round, which never arrives."""
        del self._finish[i]

    @property
    def idle(self) -> list[int]:
        """The workers that wait."""
        return [i for i in range(len(self)) if i not in self._finish]

    def wait(self, until: float = np.inf) -> tuple[int, range] | None:
        """The next report: (worker, its draws); None if there is none by then."""
        until = min(until, self.end)
        first = min(self._finish, key=lambda i: (self._finish[i][0], i), default=None)
        if first is None or self._finish[first][0] > until:
            self.now = until
            return None
        self.now, draws = self._finish.pop(first)
        self.reports.append((self.now, first))
        self.examples += len(draws)
        return first, draws


class Server:
    """The center c, the models that workers were given (s_i), and the bytes."""

    def __init__(self, workers: Workers):
        """All begin at the workers' start; that first model costs no bytes."""
        k = len(workers)
        self.workers, self.center, self.version = workers, workers.start, 0
        self.centers: list[tuple[float, np.ndarray]] = []  # (time, c) of all changes
        self.given = [workers.start] * k
        self.seen = [0] * k  # the version that each was given
        self.up, self.down = [0] * k, [0] * k
        self.merges = 0  # changes of c and reports that entered
        self.applied = 0  # reports that entered
        self.staleness: list[int] = []  # of each report that entered or was dropped
        self.entered: list[list[int]] = [[] for _ in range(k)]  # of a worker's reports
        self.more: dict[str, Any] = {}

    @property
    def dense(self) -> int:
        """The bytes of a model."""
        return BYTES * len(self.center)

    def stale(self, i: int) -> int:
        """Changes of c since i was given its model."""
        return self.version - self.seen[i]

    def hear(self, i: int, num_bytes: int | None = None) -> int:
        """Count a report that enters; return its staleness."""
        self.up[i] += self.dense if num_bytes is None else num_bytes
        self.applied += 1
        self.entered[i].append(self.stale(i))
        self.staleness.append(self.stale(i))
        return self.staleness[-1]

    def change(self, center: np.ndarray) -> None:
        """A new center, and version."""
        self.center = center
        self.version += 1
        self.centers.append((self.workers.now, center))

    def give(self, i: int, model: Any = None, num_bytes: int | None = None) -> None:
        """Give a worker c, or another model."""
        self.given[i] = self.center if model is None else model
        self.seen[i] = self.version
        self.down[i] += self.dense if num_bytes is None else num_bytes


class LocalSGD:
    """A worker's steps: v <- m v + grad + mu (w - s); w <- w - eta v; or AdamW."""

    def __init__(
        self,
        workers: Workers,
        *,
        momentum: float = 0.0,
        reset_momentum: bool = False,
        proximal: float = 0.0,
        optimizer: str | None = None,
    ):
        """`optimizer="adamw"` has the usual constants and weight decay 1e-4."""
        self.workers, self.momentum, self.proximal = workers, momentum, proximal
        self.reset, self.optimizer = reset_momentum, optimizer
        zero = np.zeros_like(workers.start)
        self.velocity = [zero] * len(workers)
        self.adam = [(zero, zero, 0)] * len(workers)

    def __call__(self, i: int, draws: range, start: np.ndarray, eta: float, shift=0.0):
        """The model after a round from `start`; `shift` is added to all gradients."""
        if self.reset:
            self.velocity[i] = np.zeros_like(start)
        w = start
        for t in draws:
            g = self.workers.gradient(i, t, w) + self.proximal * (w - start) + shift
            if self.optimizer == "adamw":
                w = w - eta * self._adamw(i, g, w)
            else:
                self.velocity[i] = self.momentum * self.velocity[i] + g
                w = w - eta * self.velocity[i]
        return w

    def _adamw(self, i, g, w):
        m, v, n = self.adam[i]
        m, v, n = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g, n + 1
        self.adam[i] = m, v, n
        m, v = m / (1 - 0.9**n), v / (1 - 0.999**n)
        return m / (np.sqrt(v) + 1e-8) + 1e-4 * w


def rounds(workers: Workers, steps: Any, learning_rate: Any):
    """Synchronous rounds: yields ({worker: draws}, eta) when all have reported.

    `steps` is one number or one for each worker; who has none is absent.
    """
    k = len(workers)
    steps = [steps] * k if isinstance(steps, int) else list(steps)
    while True:
        eta = workers.eta(learning_rate)
        members = [i for i in range(k) if steps[i]]
        for i in members:
            workers.begin(i, steps[i])
        arrived = [workers.wait() for _ in members]
        if None in arrived:
            return
        yield dict(sorted(arrived)), eta
