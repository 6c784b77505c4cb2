"""A scheduled run as a pure function, with reverse-mode differentiation."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hetjax import tree
from hetjax.data.batching import Batch
from hetjax.engine.programs.task_programs import Programs
from hetjax.runtimes.compiled.program_parts import Parts, RunState, initial_run_state
from hetjax.runtimes.compiled.scheduled_run import ScheduledRun
from hetjax.runtimes.compiled.stretch_program import event_player
from hetjax.runtimes.compiled.stretch_types import Context, scale_rates
from hetjax.tree import PyTree


def play_run(
    scheduled: ScheduledRun,
    parts: Parts,
    source: Any,
    arrays: Any,
    batches: tuple[Sequence[Batch], Sequence[Batch]],
    key: jax.Array,
    model: PyTree,
    rate: jax.Array,
) -> tuple[dict[str, jax.Array], PyTree]:
    """Train from an initial model; return (evaluations, model).

    `parts` are those of `scheduled`, possibly with other settings. All learning rates
    are multiplied by `rate`, in its dtype. `arrays` are the arrays of `source`, and
    `batches` those of the test split and of the held-out examples.

    All E events are one `lax.scan` in blocks of sqrt(E) events. The reverse pass stores
    the replicas and states at the start of each block, and those before each event of
    the block in progress; everything else is recomputed.
    """
    programs, merge = parts.programs, parts.merges[-1]
    on_test, on_held_out = (_metrics_of(programs, each) for each in batches)
    like = jax.eval_shape(lambda: model)

    def evaluate(run_state: RunState) -> dict[str, Any]:
        found = on_test(parts.model(run_state.states, like))
        if merge.report is not None:
            found = found | merge.report(parts.state(run_state.states, -1, 0))
        return jax.tree.map(jnp.asarray, found)

    play = event_player(
        Context(
            parts,
            scheduled.shape,
            source,
            arrays,
            scale_rates(scheduled.tables, rate),
            key,
            lambda r: on_held_out((r.params, r.model_state))[programs.task.metric],
        )
    )
    run_state = initial_run_state(parts, *model)
    nothing = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(evaluate, run_state)
    )

    def event(
        run_state: RunState, numbers: jax.Array
    ) -> tuple[RunState, dict[str, jax.Array]]:
        which, merge, first = numbers
        branches = [
            lambda run_state, kind=kind: (play(kind, run_state, merge, first), nothing)
            for kind in scheduled.event_kinds
        ]
        evaluated = lambda run_state: (run_state, evaluate(run_state))  # noqa: E731
        idle = lambda run_state: (run_state, nothing)  # noqa: E731
        return lax.switch(which, (*branches, evaluated, idle), run_state)

    run_state, found = _in_blocks(
        event, run_state, scheduled.events, idle=len(scheduled.event_kinds) + 1
    )
    evaluations = {
        name: values[scheduled.eval_events] for name, values in found.items()
    }
    return evaluations, parts.model(run_state.states, like)


def _in_blocks(
    play: Callable[[RunState, jax.Array], tuple[RunState, Any]],
    run_state: RunState,
    events: np.ndarray,
    *,
    idle: int,
) -> tuple[RunState, Any]:
    """Compute `lax.scan(play, run_state, events)`, with less memory in reverse.

    An event of the kind `idle` does nothing.
    """
    number = len(events)
    size = math.ceil(math.sqrt(number))
    rest = np.zeros((-number % size, events.shape[1]), events.dtype)
    rest[:, 0] = idle
    blocks = np.concatenate([events, rest]).reshape(-1, size, events.shape[1])
    one = jax.checkpoint(play, prevent_cse=False)

    def block(run_state: RunState, numbers: jax.Array) -> tuple[RunState, Any]:
        return lax.scan(one, run_state, numbers)

    run_state, found = lax.scan(
        jax.checkpoint(block, prevent_cse=False), run_state, jnp.asarray(blocks)
    )
    return run_state, jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:])[:number], found
    )


def _metrics_of(
    programs: Programs, batches: Sequence[Batch]
) -> Callable[[PyTree], dict[str, Any]]:
    """Return f(model) -> its metrics on all examples of the batches."""
    groups: dict[Any, list[Batch]] = {}  # batches of one shape
    for batch in batches:
        leaves, structure = jax.tree.flatten(batch)
        shapes = tuple((x.shape, x.dtype) for x in leaves)
        groups.setdefault((structure, shapes), []).append(batch)

    def metrics(model: PyTree) -> dict[str, Any]:
        sums = [_summed(programs.evaluate_fn, model, each) for each in groups.values()]
        total = jax.tree.map(lambda *each: sum(each[1:], each[0]), *sums)
        means = {name: total[name][0] / total[name][1] for name in ("loss", *total)}
        try:
            return programs.task.finish(means)
        except (
            jax.errors.ConcretizationTypeError,
            jax.errors.TracerArrayConversionError,
        ) as error:
            raise ValueError(
                "the task's finish converts means to Python or NumPy numbers, but "
                "means are traced in a run as a function; use jax.numpy there"
            ) from error

    return metrics


def _summed(evaluate: Callable, model: PyTree, batches: Sequence[Batch]) -> PyTree:
    """Return the sums of an evaluation over batches of one shape, with `lax.map`."""
    if len(batches) == 1:
        return evaluate(*model, batches[0])
    # leaf by leaf, as a BCOO has its own shape
    structure = jax.tree.structure(batches[0])
    leaves = zip(*map(jax.tree.leaves, batches), strict=True)
    found = lax.map(
        lambda each: evaluate(*model, jax.tree.unflatten(structure, each)),
        [jnp.stack(each) for each in leaves],
    )
    return jax.tree.map(lambda x: x.sum(axis=0), found)


def rate_dtype(model: PyTree) -> Any:
    """Return the dtype of rates: float64 with float64 parameters, else float32."""
    double = any(
        x.dtype == jnp.float64 for x in jax.tree.leaves(model) if tree.is_float(x)
    )
    return jnp.float64 if double else jnp.float32
