"""hetjax: train one model with workers that are not alike.

data, task    `data`, `models`, `classification`, `Task`
machines      `machine`
algorithms    `adaptive_sgd` ... ; parts: `schedule`, `merge`, `local`, `sampling`
runs          `train`, `compare`; what they return: `History`, `Runs`
"""

from hetjax import data, local, machine, merge, models, sampling, schedule, sparse
from hetjax.report import History, Runs
from hetjax.run import compare, train
from hetjax.strategies import (
    STRATEGIES,
    Strategy,
    adaptive_sgd,
    elastic_sgd,
    sequential_sgd,
    sma,
    sync_sgd,
)
from hetjax.task import Task, classification, from_functions

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "History",
    "Runs",
    "Strategy",
    "Task",
    "adaptive_sgd",
    "classification",
    "compare",
    "data",
    "elastic_sgd",
    "from_functions",
    "local",
    "machine",
    "merge",
    "models",
    "sampling",
    "schedule",
    "sequential_sgd",
    "sma",
    "sparse",
    "sync_sgd",
    "train",
]
