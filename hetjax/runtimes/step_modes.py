"""Which step mode K local steps take on the virtual clock: from a fixed table.

So that results are the same bit for bit everywhere; real devices are measured
(`hetjax.runtimes.threads.step_mode_choice`).
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from hetjax.data.batching import make_batch
from hetjax.engine.job import Job

SMALL = 150  # primitives of a loss that is worth unrolling


def step_mode_of_table(job: Job, platform: str) -> str:
    """The form for K steps of this task on a platform.

    Accelerators want one program for all. So do models without convolutions on a CPU;
    there a convolution inside a loop is an order of magnitude slower, so that small
    convolutional models are unrolled, and large ones, whose unrolled program would
    compile for minutes, dispatched.
    """
    if platform != "cpu":
        return "fused"
    return job.programs.once("step mode of the table", lambda: _mode_on_cpu(job))


def _mode_on_cpu(job: Job) -> str:
    names = list(_primitives(_loss_of(job).jaxpr))
    if not any(name.startswith("conv_general") for name in names):
        return "fused"
    return "unrolled" if len(names) <= SMALL else "dispatch"


def _loss_of(job: Job) -> Any:
    """The jaxpr of the task's loss on a batch."""
    task, key = job.programs.task, jax.random.key(0)
    model = jax.eval_shape(task.init, key)
    batch = make_batch(job.train, np.zeros(1, np.int64), job.buckets)
    return jax.make_jaxpr(task.loss)(*model, batch, key)


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all primitives, those of inner jaxprs too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None:
                yield from _primitives(getattr(inner, "jaxpr", inner))
