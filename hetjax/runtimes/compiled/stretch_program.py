"""The program of a stretch: supersteps of merges and local rounds, as data.

A superstep has merges, in order, and then local rounds that do not depend on one
another. The merges, the rounds and their rows are read from tables
(`hetjax.runtimes.compiled.tables`), so that one program plays any stretch of a run.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.runtimes.compiled.program_parts import Parts, RunState
from hetjax.runtimes.compiled.stacks import array_row, repeat
from hetjax.runtimes.compiled.stretch_merges import Operations
from hetjax.runtimes.compiled.stretch_rounds import Rounds
from hetjax.runtimes.compiled.stretch_types import (
    Context,
    ProgramShape,
    ScheduleEvent,
    StretchResults,
    StretchTables,
)


def stretch_program(parts: Parts, shape: ProgramShape, source: Any) -> Callable:
    """Return f(run_state, arrays of the source, tables) -> (run_state, results)."""

    def run(
        run_state: RunState, arrays: Any, tables: StretchTables
    ) -> tuple[RunState, StretchResults]:
        true = None if parts.vmapped else tables.number > 0
        key = jax.random.key(tables.seed)
        context = Context(parts, shape, source, arrays, tables, key, true=true)
        operations, rounds = Operations(context), Rounds(context)

        def superstep(
            i: Any, carry: tuple[RunState, StretchResults]
        ) -> tuple[RunState, StretchResults]:
            run_state, numbers = carry
            merge, merges, first, last = array_row(tables.supersteps, i)
            run_state = lax.fori_loop(merge, merges, operations.play_line, run_state)
            if not shape.buckets:
                return run_state, numbers
            return lax.fori_loop(first, last, rounds.play, (run_state, numbers))

        lines = tables.rates.shape
        size = max((b.size for b in shape.buckets), default=1)
        numbers = StretchResults(
            jnp.zeros(lines),
            jnp.ones(lines if parts.checks_finite else (0,), bool),
            jnp.zeros((len(tables.rows), size) if parts.records_losses else (0,)),
        )
        return lax.fori_loop(0, tables.number, superstep, (run_state, numbers))

    return run


def event_player(
    context: Context,
) -> Callable[[ScheduleEvent, RunState, Any, Any], RunState]:
    """Return f(event, run_state, first merge, first round) -> run_state.

    All loops have static lengths, so that reverse-mode differentiation works.
    """
    operations, rounds = Operations(context), Rounds(context)
    tables, vmapped = context.tables, context.parts.vmapped

    def one_round(bucket: Any, steps: int, i: Any, run_state: RunState) -> RunState:
        line, rate = rounds.line(i)
        return rounds.in_turn(line, rate, bucket, steps, run_state, jnp.zeros(0))[0]

    def play(
        event: ScheduleEvent, run_state: RunState, merge: Any, first: Any
    ) -> RunState:
        for kind, number in event.before:
            operation = partial(operations.play, kind)
            run_state = repeat(number, operation, merge, run_state)
            merge = merge + number
        for bucket, steps, number in event.rounds:
            if vmapped and number > 1:
                lines, rates = (
                    lax.dynamic_slice_in_dim(table, first, number)
                    for table in (tables.rounds, tables.rates)
                )
                run_state = rounds.side_by_side(
                    lines, rates, bucket, steps, run_state, jnp.zeros(0)
                )[0]
            else:
                in_turn = partial(one_round, bucket, steps)
                run_state = repeat(number, in_turn, first, run_state)
            first = first + number
        return run_state

    return play
