"""The program of a stretch: supersteps of merges and local rounds, as data.

A superstep has merges, in order, and then local rounds that do not depend on one
another. The merges, the rounds and their rows are read from tables, so that one program
plays any stretch of a run. `hetjax.runtimes.compiled.tables` writes the tables.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.replica import Replica
from hetjax.runtimes.compiled.program_parts import Parts, RunState
from hetjax.runtimes.compiled.stacks import array_row, repeat
from hetjax.runtimes.compiled.stretch_merges import StretchMerges
from hetjax.runtimes.compiled.stretch_rounds import StretchRounds
from hetjax.runtimes.compiled.stretch_types import (
    ProgramShape,
    ScheduleEvent,
    StretchResults,
    StretchTables,
)


def stretch_program(parts: Parts, shape: ProgramShape, source: Any) -> Callable:
    """Return f(run_state, arrays of the source, tables) -> (run_state, results)."""
    return _StretchProgram(parts, shape, source).run


def event_player(
    parts: Parts,
    shape: ProgramShape,
    source: Any,
    arrays: Any,
    tables: StretchTables,
    key: Any,
    measure: Callable[[Replica], Any],
) -> Callable[[ScheduleEvent, RunState, Any, Any], RunState]:
    """Return f(event, run_state, first merge, first round) -> run_state.

    The steps' random keys derive from `key`. `measure(replica)` returns the metric for
    merges that weigh members by it. All loops have static lengths, so that reverse-mode
    differentiation works.
    """
    playing = _StretchProgram(parts, shape, source)
    playing.measure = measure
    playing.take(arrays, tables, key)
    return playing.event


class _StretchProgram(StretchRounds, StretchMerges):
    """The program of one shape."""

    def event(
        self, event: ScheduleEvent, run_state: RunState, merge: Any, first: Any
    ) -> RunState:
        """Play an event, given the indices of its first merge and round."""
        for kind, number in event.before:
            run_state = repeat(number, partial(self._play, kind), merge, run_state)
            merge = merge + number
        for bucket, steps, number in event.rounds:
            if self._parts.vmapped and number > 1:
                rounds, rates = (
                    lax.dynamic_slice_in_dim(table, first, number)
                    for table in (self._tables.rounds, self._tables.rates)
                )
                run_state = self._rounds_at_once(
                    rounds, rates, bucket, steps, run_state, jnp.zeros(0)
                )[0]
                first = first + number
                continue

            def one(
                i: Any, run_state: RunState, bucket: Any = bucket, steps: int = steps
            ) -> RunState:
                return self._round(i, bucket, steps, run_state, jnp.zeros(0))[0]

            run_state = repeat(number, one, first, run_state)
            first = first + number
        return run_state

    def run(
        self, run_state: RunState, arrays: Any, tables: StretchTables
    ) -> tuple[RunState, StretchResults]:
        """Play all supersteps in order."""
        self.take(arrays, tables, jax.random.key(tables.seed))
        if not self._parts.vmapped:
            self._true = tables.number > 0

        def superstep(
            i: Any, carry: tuple[RunState, StretchResults]
        ) -> tuple[RunState, StretchResults]:
            run_state, numbers = carry
            merge, merges, first, last = array_row(tables.supersteps, i)
            run_state = lax.fori_loop(merge, merges, self._before, run_state)
            if not self._shape.buckets:
                return run_state, numbers
            return lax.fori_loop(first, last, self._rounds, (run_state, numbers))

        shape = tables.rates.shape
        size = max((b.size for b in self._shape.buckets), default=1)
        numbers = StretchResults(
            jnp.zeros(shape),
            jnp.ones(shape if self._parts.checks_finite else (0,), bool),
            jnp.zeros((len(tables.rows), size) if self._parts.records_losses else (0,)),
        )
        return lax.fori_loop(0, tables.number, superstep, (run_state, numbers))
