"""hetjax: train one model with heterogeneous workers.

data, task    `data`, `models`; `classification`, `regression`, `next_token`, `task`
machines      `machine`
algorithms    `adaptive_sgd`, ...; their parts: `schedule`, `merge`, `local`, `sampling`
              `sweep` makes strategies of a grid of arguments
runs          `train` and `compare`, which return a `History` and a `Comparison`;
              `plot`, and `callbacks`, of which one that returns `STOP` ends a run
functions     `make_run` and `make_round`: pure, to be mapped and differentiated
kept runs     `train(checkpoint=...)`, `Checkpoint`, `resume`, `load_model`
real devices  `local_machine`, `cluster_machine`, `calibrate`, `advise`, `replay`
by hand       `Replica`, `make_batch`, `make_grad_fn`, `local.step_fn`, `merge`
"""

import lazy_loader

__version__ = "0.1.0"

# the names are those of __init__.pyi; each is imported when it is first used
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
