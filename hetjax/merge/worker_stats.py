"""The statistics of a merge's members since their last merge."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hetjax.merge.formulas.weights import Numbers
from hetjax.merge.merge_checks import check_steps


class WorkerStats(NamedTuple):
    """The members' work since they last took part in a merge: arrays [n], or [].

    A member without local steps is absent: it does not affect the merge. Partners come
    last and have no local steps. A node's statistics cover all workers below it.
    `stats` builds a `WorkerStats` with defaults.
    """

    worker: jax.Array  # int32, index of the worker; -1 for a node
    local_steps: jax.Array
    batch_size: jax.Array  # [examples] of the last round, real-valued
    examples: jax.Array  # [examples]
    learning_rate: jax.Array  # of the last round
    staleness: jax.Array  # versions of the node's model since it was fetched
    leaves: jax.Array  # 1 for a worker; for a node, the number of workers below it
    share: jax.Array  # of the data that the member draws from, before normalization
    accuracy: jax.Array  # on held-out data if the merge requires it, else 0
    weight: jax.Array  # by the policy (`MergeAction.weight`), else 1
    server_steps: jax.Array  # [] the node's own steps since its last merge
    num_workers: jax.Array  # [] of the whole run

    @classmethod
    def unpacked(cls, table: jax.Array) -> "WorkerStats":
        """The statistics in a float32 table [fields, n], one device transfer.

        A scalar of the whole group is repeated in every column.
        """
        rows = dict(zip(cls._fields, table, strict=True))
        for name in ("server_steps", "num_workers"):
            # a merge without members (APPLY alone) has no statistics
            rows[name] = rows[name][0] if table.shape[1] else jnp.zeros(())
        rows["worker"] = rows["worker"].astype(jnp.int32)
        return cls(**rows)

    @property
    def present(self) -> jax.Array:
        """[n] bool: whether the member did any local steps."""
        return self.local_steps > 0


def stats(
    local_steps: Numbers,
    *,
    batch_size: Numbers = 1.0,
    examples: Numbers | None = None,
    learning_rate: Numbers = 1.0,
    staleness: Numbers = 0.0,
    leaves: Numbers = 1.0,
    share: Numbers = 1.0,
    accuracy: Numbers = 0.0,
    weight: Numbers = 1.0,
    server_steps: ArrayLike = 0.0,
    num_workers: ArrayLike | None = None,
    worker: Sequence[int] | None = None,
) -> WorkerStats:
    """The `WorkerStats` of n members that did `local_steps` [n] local steps.

    Every other per-member argument is one number for all members or one for each.
    `examples` defaults to local_steps * batch_size, `num_workers` to n and `worker` to
    0, 1, ... n - 1.

    >>> stats(local_steps=[8, 4], batch_size=32).examples.tolist()
    [256.0, 128.0]
    """
    check_steps("stats", local_steps)
    steps = jnp.asarray(local_steps, jnp.float32)
    if steps.ndim != 1:
        raise ValueError(
            f"stats: local_steps has shape {steps.shape}; pass one number per member"
        )
    n = steps.shape[0]

    def each(name: str, value: Any) -> jax.Array:
        value = jnp.asarray(value, jnp.float32)
        if value.shape not in ((), (n,)):
            raise ValueError(
                f"stats: {name} has shape {value.shape} for {n} members; pass one "
                "number for all, or one for each"
            )
        return jnp.broadcast_to(value, (n,))

    sizes = each("batch_size", batch_size)
    total = steps * sizes if examples is None else each("examples", examples)
    return WorkerStats(
        worker=jnp.asarray(range(n) if worker is None else worker, jnp.int32),
        local_steps=steps,
        batch_size=sizes,
        examples=total,
        learning_rate=each("learning_rate", learning_rate),
        staleness=each("staleness", staleness),
        leaves=each("leaves", leaves),
        share=each("share", share),
        accuracy=each("accuracy", accuracy),
        weight=each("weight", weight),
        server_steps=jnp.asarray(server_steps, jnp.float32),
        num_workers=jnp.asarray(n if num_workers is None else num_workers, jnp.float32),
    )
