"""hetjax: train one model with heterogeneous workers.

data, task    `data`, `models`, `classification`, `Task`
machines      `machine`
algorithms    `adaptive_sgd`, ...; their parts: `schedule`, `merge`, `local`, `sampling`
runs          `train` and `compare`, which return a `History` and a `Comparison`; `plot`
kept runs     `train(checkpoint=...)`, `Checkpoint`, `resume`, `load_model`
real devices  `local_machine`, `calibrate`, `advise`, `replay`
by hand       `Replica`, `make_batch`, `make_grad_fn`, `local.step_fn`, `merge`
"""

from hetjax import (
    data,
    local,
    machine,
    merge,
    models,
    output,
    sampling,
    schedule,
    sparse,
    tracing,
)
from hetjax.api import (
    advise,
    calibrate,
    compare,
    load_model,
    local_machine,
    replay,
    resume,
    train,
)
from hetjax.checkpoint import Checkpoint
from hetjax.data.batching import make_batch, make_buckets
from hetjax.replica import Replica
from hetjax.report import Comparison, History, plot
from hetjax.schedule import LearningRate
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
    slide,
    sma,
    sync_sgd,
)
from hetjax.task import Task, classification, from_functions
from hetjax.task.types import make_grad_fn
from hetjax.tree import MergeState, ModelState, OptState, Params, PyTree

__version__ = "0.1.0"

__all__ = [
    "STRATEGIES",
    "Checkpoint",
    "Comparison",
    "History",
    "LearningRate",
    "MergeState",
    "ModelState",
    "OptState",
    "Params",
    "PyTree",
    "Replica",
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
    "load_model",
    "local",
    "local_machine",
    "local_sgd",
    "machine",
    "magma_async_sgd",
    "make_batch",
    "make_buckets",
    "make_grad_fn",
    "merge",
    "models",
    "output",
    "plot",
    "replay",
    "resume",
    "sampling",
    "schedule",
    "sequential_sgd",
    "slide",
    "sma",
    "sparse",
    "sync_sgd",
    "tracing",
    "train",
]
