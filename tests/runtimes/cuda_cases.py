"""Small runs for CPU and GPU workers: dense and sparse problems, and their lengths."""

from functools import cache
from typing import Any, NamedTuple

from real_runs import DATA, TASK

import hetjax as hj
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session

EPOCHS = 5
SECONDS = 20.5  # virtual ones, of steps that take one or two
COMMON = {"batch_size": 4, "learning_rate": 0.05}


class Problem(NamedTuple):
    """A task and its data."""

    task: hj.Task
    data: hj.data.Dataset


DENSE = Problem(TASK, DATA)
RECORDED = {
    "local_sgd": hj.local_sgd(**COMMON, local_steps=3, momentum=0.5),
    "async_sgd": hj.async_sgd(**COMMON),
    "adaptive_sgd": hj.adaptive_sgd(**COMMON, mega_batch=20, beta=1.0),
    "sparse": hj.adaptive_sgd(**COMMON, mega_batch=20, beta=1.0),
}


def machine() -> hj.machine.Machine:
    """Four simulated workers, half of them twice as slow."""
    workers = tuple(
        hj.machine.Profile(f"w{k}", "any", hj.machine.Cost(1.0 + k % 2, 0.0))
        for k in range(4)
    )
    return hj.machine.Machine(
        "four", workers, {"": hj.machine.Link(latency=0.0, bandwidth=1e30)}
    )


@cache
def sparse() -> Problem:
    """Extreme classification in the small: inputs and labels are BCOO."""
    data = hj.data.synthetic_xmc(
        rows=64, test_rows=20, features=60, labels=8, nonzeros=6.0, labels_per_row=2.0
    )
    return Problem(hj.classification(hj.models.sparse_mlp(hidden=5), data), data)


def problem_of(name: str) -> Problem:
    """The problem that a recorded strategy is run on."""
    return sparse() if name == "sparse" else DENSE


def real(
    machine: Any, strategy: hj.Strategy, problem: Problem = DENSE, **settings: Any
) -> hj.History:
    """A real run that ends at the first evaluation behind EPOCHS epochs."""
    session = Session(
        *problem,
        machine,
        RunConfig(seconds=60.0, num_evals=600, epochs=EPOCHS, **settings),
    )
    bar = ProgressBar(60.0, shown=False)
    return session.run(strategy.name, strategy, 0, bar)


def simulated(
    strategy: hj.Strategy, device: str, problem: Problem = DENSE
) -> hj.History:
    """A run on the virtual clock with four workers, whose steps run on a device."""
    common = {"seconds": SECONDS, "num_evals": 2, "progress": False}
    return hj.train(*problem, machine(), strategy, devices=[device], **common)
