"""Whether an example's loss depends on the other examples of its batch, by trying it.

Batches are padded to few sizes with repeated examples, which must not change anything.
A loss that couples the examples, such as `(o - y)**2` with o [B, 1] and y [B], or a
softmax over the batch, would silently train on the padding, and often on a mistake.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax import sparse, tree
from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.data.dataset import Dataset
from hetjax.engine.programs.task_programs import Programs
from hetjax.tasks.types import Mean

EXAMPLES = 4  # of a batch
CLOSE = 1e-3  # relative; one program computes both, so that this is generous
QUICKLY = {"xla_backend_optimization_level": 0}  # a program that runs only twice


def check_uncoupled(programs: Programs, data: Dataset) -> None:
    """A ValueError if an example's loss changes where others of its batch are changed.

    The first and the last of four stay, and the others change. The program is run on
    two small batches, once for a task. Nothing is looked at with `batch_coupled`, and
    in training neither with `mixes`, nor with batch statistics, which couple examples
    on purpose; such models train on exact batches.
    """
    if not programs.task.batch_coupled and len(data.train) > 3:
        programs.once(("uncoupled",), lambda: _checked(programs, data))


def _checked(programs: Programs, data: Dataset) -> bool:
    task, key = programs.task, jax.random.key(0)
    trains = not (task.mixes or programs.has_statistics or task.head)

    def losses(params: Any, model_state: Any, batch: Batch) -> dict[str, Any]:
        params = tree.map_floats(_uneven, params)
        values = task.metrics(params, model_state, batch)["loss"]
        found = {"evaluation": values.total if isinstance(values, Mean) else values}
        if trains:
            view, x = sparse.row_view(params, batch.x, task.row_params)
            seen = batch._replace(x=x)
            found["training"] = task.loss(view, model_state, seen, key)[0]
        ends = np.array([0, -1])
        return {name: value[ends] for name, value in found.items()}

    model = programs.init(key)
    run = jax.jit(losses, compiler_options=QUICKLY)
    one, other = (run(*model, batch) for batch in _batches(data))
    for name in one:
        close = max(CLOSE, 2 * float(jnp.finfo(one[name].dtype).eps))
        found = np.asarray([one[name], other[name]], np.float32)  # [2, 2]
        for a, b in found.T:
            finite = np.isfinite([a, b]).all()
            if finite and not np.isclose(a, b, rtol=close, atol=1e-6):
                raise ValueError(
                    f"the loss of an example in {name} changes with the other examples "
                    f"of its batch ({a:.6g}, then {b:.6g}). Outputs [B, 1] and y [B] "
                    "make [B, B]: write outputs[:, 0]; reduce over no axis of the "
                    "batch. If it is meant, set batch_coupled=True, an argument of "
                    "hetjax.task and a field of a Task"
                )
    return True


def _uneven(leaf: jax.Array) -> jax.Array:
    """A parameter with small, fixed noise: of zeros, all outputs would be equal."""
    noise = jnp.sin(jnp.arange(leaf.size, dtype=jnp.float32) * 12.9898)
    return leaf + (0.05 * noise.reshape(leaf.shape)).astype(leaf.dtype)


def _batches(data: Dataset) -> list[Batch]:
    """Two batches with the same first and last example, and others between them."""
    rng, n = np.random.default_rng(0), len(data.train)
    first, last, *rest = rng.permutation(n)[: 2 * EXAMPLES - 2]
    half = len(rest) // 2
    between = rest[:half], rest[half : 2 * half]
    buckets = make_buckets(data.train, half + 2)
    pieces = [np.array([first, *some, last]) for some in between]
    return [make_batch(data.train, rows, buckets) for rows in pieces]
