"""The data of a stretch's program: its kinds and shapes, tables and numbers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.data.batching import Bucket
from hetjax.machine.types import MergeOp
from hetjax.merge.types import WorkerStats

WORKER = -1  # of a merge's members; others are nodes, by the merge that they have
_RATE = WorkerStats._fields.index("learning_rate")


class OperationKind(NamedTuple):
    """A kind of what comes before the rounds of a superstep."""

    what: str  # "merge", "begin", "reset", "check_out", "check_in" or "check_in_merged"
    level: int = 0  # of a merge: which merge
    op: MergeOp = MergeOp.FETCH
    members: tuple[int, ...] = ()  # WORKER, or the merge that a node has
    all_workers: bool = False  # are the members all workers, in their order?


BEGIN, RESET, CHECK_OUT, CHECK_IN, CHECK_IN_MERGED = (
    OperationKind(what)
    for what in ("begin", "reset", "check_out", "check_in", "check_in_merged")
)


class ProgramShape(NamedTuple):
    """What one program plays: any stretch of these kinds and shapes."""

    kinds: tuple[OperationKind, ...]
    buckets: tuple[Bucket, ...]  # shapes of batches; none if there are no rounds
    one_step: bool  # do all rounds have one step?


class StretchTables(NamedTuple):
    """A stretch as numbers; what is beyond a table's end is not read."""

    seed: Any  # uint32
    supersteps: Any  # int32 [Q, 4]: the first merge, the end; the first round, the end
    number: Any  # int32: of supersteps
    # worker, first row of `rows`, steps, number of its first step, batch size, bucket
    rounds: Any  # int32 [R, 6], or [R, lanes, 6] where rounds run side by side
    rates: Any  # float32 [R], or [R, lanes]
    rows: Any  # int32 [S, B]: of the training split, for each step
    merges: Any  # int32 [M, 2 + n]: kind, node, members
    stats: Any  # float32 [M, fields, n]


def scale_rates(tables: StretchTables, rate: jax.Array) -> StretchTables:
    """The tables with all learning rates multiplied, in the dtype of `rate`."""
    stats = jnp.asarray(tables.stats, rate.dtype)
    return jax.tree.map(jnp.asarray, tables)._replace(
        rates=tables.rates.astype(rate.dtype) * rate,
        stats=stats.at[:, _RATE].multiply(rate),
    )


class ScheduleEvent(NamedTuple):
    """What an event is made of: where all events are of few kinds, no number varies."""

    before: tuple[tuple[OperationKind, int], ...]  # each so many times in turn
    # bucket, steps, and how many: in turn or side by side, of different workers
    rounds: tuple[tuple[Bucket, int, int], ...]


class StretchResults(NamedTuple):
    """What the host is told of a stretch."""

    means: Any  # [R] or [R, lanes]: the mean loss of each round's last step
    finite: Any  # bool, as `means`: are all numbers finite? [0] if it is not checked
    losses: Any  # [S, B], [0] if they are not kept
