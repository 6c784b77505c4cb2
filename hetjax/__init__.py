"""hetjax: train one model with workers that are not alike.

data, task    `data`, `models`, `classification`, `Task`
machines      `machine`
algorithms    `adaptive_sgd` ... ; parts: `schedule`, `merge`, `local`, `sampling`
runs          `train`, `compare`; what they return: `History`, `Runs`
real devices  `local_machine`, `calibrate`, `advise`, `replay`; pictures: `plot`
"""

from hetjax import data, local, machine, merge, models, sampling, schedule, sparse
from hetjax.report import History, Runs, plot
from hetjax.run import advise, calibrate, compare, local_machine, replay, train
from hetjax.schedule import Rate
from hetjax.strategies import (
    STRATEGIES,
    Strategy,
    ad_psgd,
    adaptive_sgd,
    async_sgd,
    biased_local_sgd,
    downpour,
    eamsgd,
    easgd,
    easgd_sync,
    elastic_sgd,
    fed_acc,
    fed_adp,
    fed_nova,
    hier_sgd,
    hogwild,
    local_sgd,
    magma_async_sgd,
    sequential_sgd,
    sma,
    sync_sgd,
)
from hetjax.task import Task, classification, from_functions

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "History",
    "Rate",
    "Runs",
    "Strategy",
    "Task",
    "ad_psgd",
    "adaptive_sgd",
    "advise",
    "async_sgd",
    "biased_local_sgd",
    "calibrate",
    "classification",
    "compare",
    "data",
    "downpour",
    "eamsgd",
    "easgd",
    "easgd_sync",
    "elastic_sgd",
    "fed_acc",
    "fed_adp",
    "fed_nova",
    "from_functions",
    "hier_sgd",
    "hogwild",
    "local",
    "local_machine",
    "local_sgd",
    "machine",
    "magma_async_sgd",
    "merge",
    "models",
    "plot",
    "replay",
    "sampling",
    "schedule",
    "sequential_sgd",
    "sma",
    "sparse",
    "sync_sgd",
    "train",
]
