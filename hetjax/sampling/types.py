"""The `Sampler` interface (host world, no JAX)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetjax.machine.types import WorkerInfo


class Sampler(NamedTuple):
    """Pure functions on a sampler's state; indices are rows of the training split.

    init(workers, num_examples, seed) -> state
    draw(state, worker, n) -> (state, indices [n])
    observe(state, worker, indices, losses) -> state; None if losses do not matter
    share(state) -> [workers] shares of the data; None if all workers draw from all data
    rows(state, worker) -> all rows that a worker will ever draw; None if any row may be
    for_workers(state, workers) -> the state of a run that continues with other workers;
        None if sampling has to start again for them
    """

    init: Callable[[tuple[WorkerInfo, ...], int, int], Any]
    draw: Callable[[Any, int, int], tuple[Any, np.ndarray]]
    observe: Callable[[Any, int, np.ndarray, np.ndarray], Any] | None = None
    share: Callable[[Any], np.ndarray] | None = None
    for_workers: Callable[[Any, tuple[WorkerInfo, ...]], Any] | None = None
    rows: Callable[[Any, int], np.ndarray] | None = None
