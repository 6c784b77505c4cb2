"""Whether an example's loss depends on the other examples of its batch, by trying it.

Batches are padded to few sizes with repeated examples, which must not change anything.
A loss that couples the examples, such as `(o - y)**2` with o [B, 1] and y [B], or a
softmax over the batch, would silently train on the padding, and often on a mistake.
"""

from typing import Any

import jax
import numpy as np

from hetjax import sparse
from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.data.dataset import Dataset
from hetjax.engine.compiled.programs import Programs
from hetjax.tasks.types import Mean

EXAMPLES = 4  # of a batch
CLOSE = 1e-3  # relative; one program computes both, so that even this is generous
QUICKLY = {"xla_backend_optimization_level": 0}  # a program that runs only twice


def check_uncoupled(programs: Programs, data: Dataset) -> None:
    """A ValueError if the first example's loss changes where the others are changed.

    The program is run on two small batches, once for a task. Nothing is looked at with
    `batch_coupled`, and in training neither with `mixes`, nor with batch statistics,
    which couple examples on purpose; such models train on exact batches.
    """
    if not programs.task.batch_coupled and len(data.train) > 2:
        programs.once(("uncoupled",), lambda: _checked(programs, data) or True)


def _checked(programs: Programs, data: Dataset) -> None:
    task, key = programs.task, jax.random.key(0)
    trains = not (task.mixes or programs.has_statistics or task.head)

    def losses(params: Any, model_state: Any, batch: Batch) -> dict[str, Any]:
        values = task.metrics(params, model_state, batch)["loss"]
        found = {"evaluation": values.total if isinstance(values, Mean) else values}
        if trains:
            view, x = sparse.row_view(params, batch.x, task.row_params)
            seen = batch._replace(x=x)
            found["training"] = task.loss(view, model_state, seen, key)[0]
        return {name: value[0] for name, value in found.items()}

    model = programs.init(key)
    run = jax.jit(losses, compiler_options=QUICKLY)
    one, other = ((run(*model, batch)) for batch in _batches(data))
    for name in one:
        a, b = np.float32(one[name]), np.float32(other[name])
        if np.isfinite([a, b]).all() and not np.isclose(a, b, rtol=CLOSE, atol=1e-6):
            raise ValueError(
                f"the loss of an example in {name} changes with the other examples of "
                f"its batch ({a:.6g}, then {b:.6g}): return losses [B] of one example "
                "each (outputs [B, 1] beside y [B] make [B, B]; reduce over no batch "
                "axis), or, if it is meant, set batch_coupled=True: "
                "task._replace(batch_coupled=True), or the argument of hetjax.task"
            )


def _batches(data: Dataset) -> list[Batch]:
    """Two batches with the same first example, and others beside it."""
    rng, n = np.random.default_rng(0), len(data.train)
    first, *rest = rng.permutation(n)[: 2 * EXAMPLES - 1]
    half = len(rest) // 2
    buckets = make_buckets(data.train, half + 1)
    pieces = (np.array([first, *rest[:half]]), np.array([first, *rest[half:][:half]]))
    return [make_batch(data.train, rows, buckets) for rows in pieces]
