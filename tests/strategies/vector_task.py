"""Runs on quadratics whose gradients are given by worker and number of the draw.

The t-th gradient of worker i at x is h (x - a), with a = targets[i, t mod r] and h =
curvatures[i, t mod r]: `sampler` gives worker i its own r rows in turn, and each step
uses one of them. `run` returns the center at all evaluations, since the metrics are its
numbers, and the models with which the workers' rounds began.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import tiny_runs
from tiny_problems import flat
from vector_world import START, TARGETS

from hetjax import Task
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.data import from_arrays
from hetjax.engine.replica_store import ReplicaStore
from hetjax.sampling import Sampler


@dataclass(frozen=True, eq=False)  # compared by identity, as keys of caches
class Quadratics:
    """Targets and curvatures [workers, rows, n], a start [n], and lengths of leaves."""

    targets: np.ndarray
    curvatures: np.ndarray
    start: np.ndarray
    lengths: tuple[int, ...]

    def gradient(self, worker: int, t: int, x: np.ndarray) -> np.ndarray:
        """The t-th gradient of a worker, in float64."""
        row = t % self.targets.shape[1]
        return self.curvatures[worker, row] * (x - self.targets[worker, row])

    @property
    def leaves(self) -> list[np.ndarray]:
        """The indices of each leaf's numbers."""
        ends = np.cumsum(self.lengths)
        return np.split(np.arange(ends[-1]), ends[:-1])

    def sampler(self) -> Sampler:
        """Worker i draws its rows in turn."""
        r = self.targets.shape[1]

        def draw(state, worker, n):
            first = state[worker]
            rows = worker * r + (first + np.arange(n)) % r
            return (*state[:worker], first + n, *state[worker + 1 :]), rows

        return Sampler(lambda workers, num_examples, seed: (0,) * len(workers), draw)


def of_the_vectors(lengths=(2,)):
    """The problem of the vectors, with one leaf or two."""
    return Quadratics(TARGETS, np.ones_like(TARGETS), START, lengths)


def mixed(seed=0, workers=3, rows=5, lengths=(2, 4, 1, 3)):
    """Random targets and curvatures, of more numbers and leaves."""
    rng = np.random.default_rng(seed)
    shape = workers, rows, sum(lengths)
    targets = rng.normal(size=shape).astype(np.float32).astype(np.float64)
    curvatures = rng.uniform(0.4, 1.4, shape).astype(np.float32).astype(np.float64)
    start = rng.normal(size=shape[-1]).astype(np.float32).astype(np.float64)
    return Quadratics(targets, curvatures, start, lengths)


PROBLEMS = {
    "vectors": of_the_vectors(),
    "vectors, two leaves": of_the_vectors((1, 1)),
    "mixed": mixed(),
}


def task_of(problem: Quadratics) -> Task:
    """Its task: the loss is h |x - a|^2 / 2, the metrics are the numbers of x."""
    where = problem.leaves

    def init(key):
        names = [f"leaf{j}" for j in range(len(where))]
        leaves = [jnp.asarray(problem.start[i], jnp.float32) for i in where]
        return dict(zip(names, leaves, strict=True)), ()

    def joined(params):
        return jnp.concatenate([params[name] for name in sorted(params)])

    def loss(params, model_state, batch, key):
        a, h = jnp.split(batch.x, 2, axis=-1)
        return jnp.sum(h * (joined(params)[None] - a) ** 2, -1) / 2, model_state

    def metrics(params, model_state, batch):
        losses, _ = loss(params, model_state, batch, None)
        numbers = enumerate(joined(params))
        return {"loss": losses} | {f"x{i}": x + 0 * losses for i, x in numbers}

    return Task(init, loss, metrics, "loss", mode="min")


def data_of(problem: Quadratics):
    """Its rows, worker by worker; one test row."""
    rows = np.concatenate([problem.targets, problem.curvatures], -1)
    rows = rows.reshape(-1, rows.shape[-1]).astype(np.float32)
    y = np.zeros(len(rows), np.int32)
    return from_arrays((rows, y), (rows[:1], y[:1]), num_classes=1)


@cache
def session(problem: Quadratics) -> Session:
    """One session for all runs on a problem: they share their compiled programs."""
    config = RunConfig(seconds=1.0)
    return Session(task_of(problem), data_of(problem), tiny_runs.machine(1.0), config)


class Run(NamedTuple):
    """What a run did."""

    history: Any
    times: tuple[float, ...]  # of evaluations
    centers: np.ndarray  # [evaluations, n]
    given: dict[int, np.ndarray]  # the model with which each worker's last round began
    up: list[int]  # bytes from each worker
    down: list[int]  # and to it


def run(strategy, problem, seconds, end, *, compiled=False, monkeypatch=None) -> Run:
    """Run on workers with these seconds per step, evaluated at 0.5, 1.5, ... `end` s.

    Links take no time. With `monkeypatch`, a run of the reference player also tells
    with which models rounds began.
    """
    given: dict[int, np.ndarray] = {}
    if monkeypatch is not None:
        check_out = ReplicaStore.check_out

        def watched(store, worker):
            replica = check_out(store, worker)
            given[worker] = flat(replica.params)
            return replica

        monkeypatch.setattr(ReplicaStore, "check_out", watched)
    times = tuple(np.arange(0.5, end + 0.25).tolist())
    one = session(problem).with_machine(tiny_runs.machine(*seconds))
    one.config = RunConfig(seconds=end, instants=(0.0, *times), compiled=compiled)
    strategy = strategy._replace(sampler=problem.sampler())
    history = one.run("run", strategy, 0, ProgressBar(end, shown=False))
    points = history.evals[1:]
    n = len(problem.start)
    return Run(
        history,
        times,
        np.array([[point[f"x{i}"] for i in range(n)] for point in points]),
        given,
        [worker.bytes_received for worker in history.workers],
        [worker.bytes_sent for worker in history.workers],
    )


def centers_of(server, times) -> np.ndarray:
    """The centers of an oracle's server at these times."""
    changes = [(0.0, server.workers.start), *server.centers]
    return np.array([[c for t, c in changes if t <= time][-1] for time in times])
