"""The step mode of K local steps on the virtual clock, from a fixed table.

With a table, results are the same bit for bit everywhere. On real devices a measurement
chooses the step mode (`hetjax.runtimes.real.step_mode_choice`).
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.data.batching import make_batch
from hetjax.engine.job import Job

SMALL = 150  # primitives of the largest loss that is worth unrolling


def step_mode_of_table(job: Job, platform: str) -> str:
    """Return the step mode for K steps of this task on a platform.

    On accelerators, and on a CPU without convolutions, the steps are fused into one
    program. On a CPU a convolution inside a loop is an order of magnitude slower:
    small convolutional models are unrolled there, and large ones, whose unrolled
    program would compile for minutes, are dispatched step by step.
    """
    if platform != "cpu" or not any(n.startswith("conv_general") for n in _names(job)):
        return "fused"
    return "unrolled" if is_small(job) else "dispatch"


def loops_are_fast(job: Job, platform: str) -> bool:
    """Whether steps are as fast inside a loop: on a CPU convolutions are not."""
    return step_mode_of_table(job, platform) == "fused"


def is_small(job: Job) -> bool:
    """Whether the model is small enough to be unrolled."""
    return len(_names(job)) <= SMALL


def flops_per_example(job: Job) -> float:
    """Return the operations in the products and convolutions of an example's loss.

    They are at least those of one product with every parameter.
    """
    programs = job.programs

    def counted() -> float:
        jaxpr = _loss_of(job).jaxpr
        return max(float(_products(jaxpr)), 2.0 * tree.size(programs.model_like[0]))

    return programs.once("operations of the loss", counted)


def step_bytes(job: Job) -> float:
    """Return about the bytes that a step computes for each example.

    These are all values that the loss of an example computes, twice: its gradient
    computes equally many.
    """

    def counted() -> float:
        sizes = (
            math.prod(out.aval.shape) * out.aval.dtype.itemsize
            for equation in _equations(_loss_of(job).jaxpr)
            for out in equation.outvars
            if hasattr(out.aval, "dtype")
        )
        return 2.0 * sum(sizes)

    return job.programs.once("bytes of a step", counted)


def _products(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        total += _operations(equation)
        for inner in _inner(equation):
            total += equation.params.get("length", 1) * _products(inner)
    return total


def _operations(equation: Any) -> float:
    """Return two operations for each product of two numbers in an equation."""
    name, out = equation.primitive.name, equation.outvars[0].aval
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2.0 * math.prod(out.shape) * math.prod(shape[i] for i in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        outputs = equation.params["dimension_numbers"].rhs_spec[0]
        return 2.0 * math.prod(out.shape) * math.prod(kernel) / kernel[outputs]
    return 0.0


def _names(job: Job) -> list[str]:
    """Return the names of all primitives of the loss."""
    return job.programs.once(
        "primitives of the loss",
        lambda: [e.primitive.name for e in _equations(_loss_of(job).jaxpr)],
    )


def _loss_of(job: Job) -> Any:
    """Return the jaxpr of the task's loss on a batch."""
    task, key = job.programs.task, jax.random.key(0)
    model = job.programs.model_like
    batch = make_batch(job.train, np.zeros(1, np.int64), job.buckets)
    return jax.make_jaxpr(task.loss)(*model, batch, key)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations, including those of inner jaxprs."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inner(equation):
            yield from _equations(inner)


def _inner(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation calls."""
    for value in equation.params.values():
        inner = getattr(value, "jaxpr", None)
        if inner is not None:
            yield getattr(inner, "jaxpr", inner)
