"""hetjax: train one model with heterogeneous workers.

data, tasks   `data`, `models`; `classification`, `regression`, `next_token`, `task`
machines      `machine`
algorithms    `adaptive_sgd`, ...; with parts `schedule`, `merge`, `local`, `sampling`;
              `sweep` returns strategies for a grid of arguments
runs          `train` and `compare`, which return a `History` and a `Comparison`;
              `plot`; `callbacks`, which end a run by returning `STOP`
functions     `make_run` and `make_round`: pure, for `jax.vmap` and `jax.grad`
checkpoints   `train(checkpoint=...)`, `Checkpoint`, `resume`, `load_model`
real devices  `local_machine`, `cluster_machine`, `calibrate`, `advise`, `replay`
custom loops  `Replica`, `make_batch`, `make_grad_fn`, `local.step_fn`, `merge`
"""

import lazy_loader

__version__ = "0.1.0"

# the names are those of __init__.pyi; each is imported on first use
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
