"""The data types of a stretch's program: operations, shapes, tables and results."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax.data.batching import Bucket
from hetjax.machine.types import MergeOp
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.compiled.program_parts import Parts
from hetjax.runtimes.compiled.stacks import run_if, set_tree_row

WORKER = -1  # as a merge's member; other members are nodes, given by their level
_RATE = WorkerStats._fields.index("learning_rate")


class OperationKind(NamedTuple):
    """A kind of operation before the rounds of a superstep, such as a merge."""

    what: str  # "merge", "begin", "reset", "check_out", "check_in" or "check_in_merged"
    level: int = 0  # of a merge: index of the merge
    op: MergeOp = MergeOp.FETCH
    members: tuple[int, ...] = ()  # WORKER, or the level of a node
    all_workers: bool = False  # whether the members are all workers, in order
    part: str = ""  # of the model; "": the whole model


BEGIN, RESET, CHECK_OUT, CHECK_IN, CHECK_IN_MERGED = (
    OperationKind(what)
    for what in ("begin", "reset", "check_out", "check_in", "check_in_merged")
)


class ProgramShape(NamedTuple):
    """The static arguments of a program, which plays any stretch of this shape."""

    kinds: tuple[OperationKind, ...]
    buckets: tuple[Bucket, ...]  # shapes of batches; empty without rounds
    one_step: bool  # whether all rounds have one step


class StretchTables(NamedTuple):
    """A stretch as arrays; rows beyond the end of a table are not read."""

    seed: Any  # uint32
    supersteps: Any  # int32 [Q, 4]: ranges of merges and of rounds, without the end
    number: Any  # int32: the number of supersteps
    # worker, first row of `rows`, steps, number of its first step, batch size, bucket
    rounds: Any  # int32 [R, 6], or [R, lanes, 6] if rounds run side by side
    rates: Any  # float32 [R], or [R, lanes]
    rows: Any  # int32 [S, B]: rows of the training split for each step
    merges: Any  # int32 [M, 2 + n]: kind, node, members
    stats: Any  # float32 [M, fields, n]


def scale_rates(tables: StretchTables, rate: jax.Array) -> StretchTables:
    """Multiply all learning rates in the tables, in the dtype of `rate`."""
    stats = jnp.asarray(tables.stats, rate.dtype)
    return jax.tree.map(jnp.asarray, tables)._replace(
        rates=tables.rates.astype(rate.dtype) * rate,
        stats=stats.at[:, _RATE].multiply(rate),
    )


class ScheduleEvent(NamedTuple):
    """A kind of event: operations, then rounds, in static numbers."""

    before: tuple[tuple[OperationKind, int], ...]  # each repeated in turn
    # bucket, steps, and the number of such rounds, in turn or side by side
    rounds: tuple[tuple[Bucket, int, int], ...]


class StretchResults(NamedTuple):
    """The results of a stretch that the host reads."""

    means: Any  # [R] or [R, lanes]: the mean loss of each round's last step
    finite: Any  # bool, as `means`: whether replicas are finite; [0] if unchecked
    losses: Any  # [S, B]; [0] if they are not recorded


class Context(NamedTuple):
    """The static and the traced inputs of a stretch's program."""

    parts: Parts
    shape: ProgramShape
    source: Any  # makes batches, from its `arrays`
    arrays: Any
    tables: StretchTables
    key: Any  # of the run
    # for merges that weigh members: their metrics; None: they are in the tables
    measure: Callable[[Replica], Any] | None = None
    true: Any = None  # a traced True, opaque to XLA; None: no write is separate

    def set_tree_row(
        self, stacks: Any, index: Any, new: Any, old: Any = None, *, apart: bool = True
    ) -> Any:
        """Write a row; see `stacks.set_tree_row` and `write`."""
        return self.write(
            partial(set_tree_row, index=index, new=new, old=old), stacks, apart
        )

    def write(self, write: Callable[[Any], Any], stacks: Any, apart: bool) -> Any:
        """Return `write(stacks)`; if `apart`, after all reads of the stacks.

        Otherwise XLA reads rows where they are used, among the writes, and copies the
        whole stack first.
        """
        if self.true is None or not apart:
            return write(stacks)
        return run_if(self.true, write, stacks)
