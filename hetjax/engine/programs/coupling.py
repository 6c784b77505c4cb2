"""Check by a trial that an example's loss does not depend on the rest of its batch.

Batches are padded to a few sizes with repeated examples, which must not change the
results. A loss that couples the examples, such as `(o - y)**2` with o [B, 1] and y [B],
or a softmax over the batch, would silently train on the padding; often it is a mistake.
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
TOLERANCE = 1e-3  # relative; generous, since one program computes both
FAST_COMPILATION = {"xla_backend_optimization_level": 0}  # it runs only twice


def check_uncoupled(programs: Programs, data: Dataset) -> None:
    """Raise a ValueError if an example's loss changes with the rest of its batch.

    The program runs on two small batches, once per task: of four examples the first and
    the last stay, and the others change. Tasks with `batch_coupled` are not checked,
    nor the training loss of those with `mixes`, a head, or batch statistics, which
    couple examples on purpose; such models train on exact batches.
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
    run = jax.jit(losses, compiler_options=FAST_COMPILATION)
    one, other = (run(*model, batch) for batch in _batches(data))
    for name in one:
        close = max(TOLERANCE, 2 * float(jnp.finfo(one[name].dtype).eps))
        found = np.asarray([one[name], other[name]], np.float32)  # [2, 2]
        for a, b in found.T:
            finite = np.isfinite([a, b]).all()
            if finite and not np.isclose(a, b, rtol=close, atol=1e-6):
                raise ValueError(
                    f"the loss of an example in {name} changes with the other examples "
                    f"of its batch ({a:.6g}, then {b:.6g}). Outputs [B, 1] and y [B] "
                    "make [B, B]: write outputs[:, 0], and do not reduce over the "
                    "batch axis. If the coupling is intended, set "
                    "batch_coupled=True, an argument of hetjax.task and a field of a "
                    "Task"
                )
    return True


def _uneven(leaf: jax.Array) -> jax.Array:
    """Return a leaf plus small, fixed noise: with zeros, all outputs would be equal."""
    noise = jnp.sin(jnp.arange(leaf.size, dtype=jnp.float32) * 12.9898)
    return leaf + (0.05 * noise.reshape(leaf.shape)).astype(leaf.dtype)


def _batches(data: Dataset) -> list[Batch]:
    """Return two batches that share only their first and last example."""
    rng, n = np.random.default_rng(0), len(data.train)
    first, last, *rest = rng.permutation(n)[: 2 * EXAMPLES - 2]
    half = len(rest) // 2
    between = rest[:half], rest[half : 2 * half]
    buckets = make_buckets(data.train, half + 2)
    pieces = [np.array([first, *some, last]) for some in between]
    return [make_batch(data.train, rows, buckets) for rows in pieces]
