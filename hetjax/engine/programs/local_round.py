"""Programs of local rounds: all steps, or one, with what the host sends for them.

A program receives its batches, or gathers them from data on the device. Everything
else comes in one table of uint32: for each step whether it is its round's last, the
learning rate (the bits of a float32), and the three numbers of its random key; before
these, if batches are gathered, the row numbers of the batch and the number of true
examples.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax import tree
from hetjax.data.batching import Bucket
from hetjax.data.device_rows import RowGather
from hetjax.merge.group import unstacked

NUMBERS = 5  # of a step, besides its rows: whether it is the last, its rate, its key


class RowBatches(NamedTuple):
    """How a program gathers its batches."""

    gather: RowGather
    bucket: Bucket


def step_numbers(
    seed: int, worker: int, first: int, steps: int, learning_rate: np.float32
) -> np.ndarray:
    """Return the numbers [steps, 5] of a worker's steps; the first is number `first`.

    The random key of a step is made of (seed, worker, step).
    """
    rate = int(learning_rate.view(np.uint32))
    end = first + steps
    numbers = [(i == end - 1, rate, seed, worker, i) for i in range(first, end)]
    return np.array(numbers, np.uint32).reshape(steps, NUMBERS)


def step_table(numbers: np.ndarray, rows: np.ndarray | None, n: int) -> np.ndarray:
    """Return the table of S steps of n examples, with these rows [S, B].

    Without rows, batches are sent, and the table has nothing but the numbers.
    """
    if rows is None:
        return numbers
    steps, size = rows.shape
    table = np.empty((steps, size + 1 + NUMBERS), np.uint32)
    table[:, :size], table[:, size], table[:, size + 1 :] = rows, n, numbers
    return table


def local_round(
    step: Callable, batches: RowBatches | None, how: str, checks: bool
) -> Callable:
    """Return the program of `Programs.local_round`, not jitted."""

    def one(replica: Any, data: Any, numbers: jax.Array) -> tuple:
        if batches is not None:
            size = batches.bucket.size
            rows, n = numbers[:size].astype(jnp.int32), numbers[size].astype(jnp.int32)
            data = batches.gather.batch(data, rows, n, batches.bucket)
        rate = jax.lax.bitcast_convert_type(numbers[1 - NUMBERS], jnp.float32)
        return step(replica, data, rate, numbers[2 - NUMBERS :])

    def several(replica: Any, data: Any, table: jax.Array) -> tuple:
        def body(replica: Any, inputs: tuple) -> tuple:
            own, numbers = inputs
            of_step = data if batches else own
            replica, losses, mean = one(replica, of_step, numbers)
            return replica, (losses, mean)

        unroll = table.shape[0] if how == "unrolled" else 1
        inputs = None if batches else data, table
        replica, (losses, means) = jax.lax.scan(body, replica, inputs, unroll=unroll)
        return replica, losses, means[-1]

    def local_steps(replica: Any, data: Any, table: jax.Array) -> tuple:
        if how != "dispatch":
            replica, losses, mean = several(replica, data, table)
            return replica, losses, mean, tree.all_finite(replica) if checks else ()
        replica, losses, mean = one(replica, data, table)
        finite = ()
        if checks:  # only after the last step: it reads all numbers once more
            last = table[-NUMBERS] > 0
            finite = jax.lax.cond(last, tree.all_finite, lambda _: True, replica)
        return replica, losses, mean, finite

    def vmapped_local_steps(replicas: tuple, data: Any, tables: jax.Array) -> tuple:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *replicas)
        run = over_workers(local_steps, shared=batches is not None)
        stacked, *rest = run(stacked, data, tables)
        return unstacked(stacked, len(replicas)), *rest

    return vmapped_local_steps if how == "vmapped" else local_steps


def over_workers(steps: Callable, *, shared: bool = False) -> Callable:
    """`jax.vmap` of steps(replica, data, ...) over all arguments' first axes.

    Data that are `shared` have no such axis: all workers gather from them. Otherwise
    they are batches, whose arrays are mapped one by one: a BCOO has its own rule for
    vmap, in which the first axis is one of the matrix.
    """

    def several(replicas: Any, data: Any, *rest: Any) -> Any:
        leaves, structure = jax.tree.flatten(data)

        def one(replica: Any, leaves: list[jax.Array], *rest: Any) -> Any:
            return steps(replica, jax.tree.unflatten(structure, leaves), *rest)

        axes = 0, None if shared else 0, *[0] * len(rest)
        return jax.vmap(one, axes)(replicas, leaves, *rest)

    return several
