"""Checks of custom merges and local updates, which are traced before a run.

Nothing is compiled, and only the form of the results is checked. An exception raised
by the part itself is ignored here: the run calls it with the actual members.
"""

import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import errors

from hetjax import local
from hetjax.data.batching import Batch
from hetjax.data.dataset import Dataset
from hetjax.local import LocalUpdate
from hetjax.machine.types import PUSH_FETCH
from hetjax.made_of import is_own
from hetjax.merge.merge_checks import WrongPart
from hetjax.merge.types import Merge
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.strategies.types import Strategy
from hetjax.summaries import maker
from hetjax.tasks.task_checks import batch_of, model_shapes
from hetjax.tasks.types import Task, make_grad_fn

_BRANCHES = (
    errors.ConcretizationTypeError,
    errors.TracerArrayConversionError,
    errors.TracerIntegerConversionError,
)
_MEMBERS = 2  # of the merge that is traced


def check_custom_parts(strategy: Strategy, task: Task, data: Dataset) -> None:
    """Raise a WrongPart if a merge or a local update returns unusable results.

    hetjax's own parts are not traced.
    """
    if _is_own(strategy.local.step):
        check_custom_step(strategy.local, task, batch_of(data.train, 2))
    check_custom_merges(strategy, task)


def check_custom_step(update: LocalUpdate, task: Task, batch: Batch) -> None:
    """Raise a WrongPart if a custom local update returns unusable results."""
    if not _is_own(update.step):
        return
    what = f"the local update {maker(update.step)}: step"

    def step(model: Any, batch: Batch) -> None:
        replica = local.new_replica(update, *model)
        grad_fn = make_grad_fn(task, jax.random.key(0))
        result = update.step(replica, batch, jnp.float32(1.0), grad_fn)
        _check_step(what, result, len(batch.weight))

    _trace(what, update.step, step, model_shapes(task), batch)


def check_custom_merges(strategy: Strategy, task: Task) -> None:
    """Raise a WrongPart if a custom merge returns unusable results."""
    table = jax.ShapeDtypeStruct((len(WorkerStats._fields), _MEMBERS), jnp.float32)
    for merge in strategy.merges:
        if _is_own(merge.apply) or _is_own(merge.model):
            _check_merge(strategy.local, merge, model_shapes(task), table)


def _is_own(function: Any) -> bool:
    """Whether this function is the user's, not a library's."""
    return is_own(getattr(function, "__module__", None))


def _check_merge(
    update: LocalUpdate, merge: Merge, model: Any, table: jax.ShapeDtypeStruct
) -> None:
    what = f"the merge {maker(merge.apply)}:"

    def evaluated(model: Any) -> None:
        found = merge.model(merge.init(*model))
        pair = isinstance(found, tuple) and len(found) == 2
        if not pair or _structure(found[0]) != _structure(model[0]):
            raise WrongPart(
                f"{what} model(state) returned {_shown(found)}: return a pair (params, "
                "model_state), with params like those of the task"
            )

    def applied(model: Any, table: jax.Array) -> None:
        one = local.new_replica(update, *model, requires=merge.requires)
        state, stats = merge.init(*model), WorkerStats.unpacked(table)
        found = merge.apply(state, (one,) * _MEMBERS, stats, PUSH_FETCH)
        pair = isinstance(found, tuple) and len(found) == 2
        members = found[1] if pair and isinstance(found[1], tuple | list) else ()
        right = [isinstance(member, Replica) for member in members]
        if right != [True] * _MEMBERS:
            raise WrongPart(
                f"{what} apply returned {_shown(found)} for {_MEMBERS} replicas: "
                f"return a pair (state, replicas) with all {_MEMBERS} replicas"
            )

    _trace(f"{what} model", merge.model, evaluated, model)
    if PUSH_FETCH in merge.ops:
        _trace(f"{what} apply", merge.apply, applied, model, table)


def _trace(what: str, part: Any, function: Callable[..., None], *shapes: Any) -> None:
    """Trace a function that checks what `part` returns."""
    try:
        jax.eval_shape(function, *shapes)
    except WrongPart:
        raise
    except _BRANCHES as error:
        raise WrongPart(
            f"{what} branches on a value, or makes a NumPy array of it"
            f"{_place(error, part)}, but is compiled before values are known: use "
            "jnp.where, jax.lax.cond or jax.numpy"
        ) from error
    except Exception:
        pass  # raised by the part itself, which may need other members


def _place(error: Exception, part: Any) -> str:
    """The line of the part's own file that raised the error."""
    file = getattr(getattr(part, "__code__", None), "co_filename", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f" ({file}, line {lines[-1]})" if lines else ""


def _check_step(what: str, result: Any, size: int) -> None:
    pair = isinstance(result, tuple) and len(result) == 2
    losses = getattr(result[1], "shape", None) if pair else None
    if not pair or not isinstance(result[0], Replica) or losses != (size,):
        raise WrongPart(
            f"{what} returned {_shown(result)} for {size} examples: return a pair "
            f"(replica, losses [{size}])"
        )


def _structure(value: Any) -> Any:
    return jax.tree.structure(value)


def _shown(value: Any) -> str:
    """The type of a value; of a tuple, the types of its elements."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"({', '.join(map(_shown, value))})"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"an array {list(shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
