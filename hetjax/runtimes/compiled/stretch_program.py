"""The program of a stretch: supersteps of merges and local rounds, as data.

A superstep has merges, in their order, and then local rounds that do not depend on one
another. Which merges, which rounds, and on which rows are tables of numbers, so that
one program plays any stretch of a run. See `hetjax.runtimes.compiled.stretch`, which
writes the tables.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax.replica import Replica
from hetjax.runtimes.compiled.parts import Held, Parts
from hetjax.runtimes.compiled.stacks import at, repeated
from hetjax.runtimes.compiled.stretch_types import Event, Numbers, Shape, StretchTables
from hetjax.runtimes.compiled.superstep_merges import SuperstepMerges
from hetjax.runtimes.compiled.superstep_rounds import SuperstepRounds


def stretch(parts: Parts, shape: Shape, source: Any) -> Callable:
    """(held, arrays of the source, tables) -> (held, numbers)."""
    return _Stretch(parts, shape, source).run


def event_player(
    parts: Parts,
    shape: Shape,
    source: Any,
    arrays: Any,
    tables: StretchTables,
    key: Any,
    measure: Callable[[Replica], Any],
) -> Callable[[Event, Held, Any, Any], Held]:
    """(event, held, its first merge, its first round) -> held.

    The steps' random keys are made from `key`. `measure(replica)` is the metric that is
    a member's weight in merges that require it. All loops have a fixed length, so that
    what happens can be differentiated in reverse.
    """
    playing = _Stretch(parts, shape, source)
    playing.measure = measure
    playing.take(arrays, tables, key)
    return playing.event


class _Stretch(SuperstepRounds, SuperstepMerges):
    """The program of one shape."""

    def event(self, event: Event, held: Held, merge: Any, first: Any) -> Held:
        """Play an event, whose merges and rounds begin at these places."""
        for kind, number in event.before:
            held = repeated(number, partial(self._play, kind), merge, held)
            merge = merge + number
        for bucket, steps, number in event.rounds:
            if self._parts.vmapped and number > 1:
                rounds, rates = (
                    lax.dynamic_slice_in_dim(table, first, number)
                    for table in (self._tables.rounds, self._tables.rates)
                )
                held = self._rounds_at_once(
                    rounds, rates, bucket, steps, held, jnp.zeros(0)
                )[0]
                first = first + number
                continue

            def one(
                i: Any, held: Held, bucket: Any = bucket, steps: int = steps
            ) -> Held:
                return self._round(i, bucket, steps, held, jnp.zeros(0))[0]

            held = repeated(number, one, first, held)
            first = first + number
        return held

    def run(
        self, held: Held, arrays: Any, tables: StretchTables
    ) -> tuple[Held, Numbers]:
        """Play all supersteps, one after the other."""
        self.take(arrays, tables, jax.random.key(tables.seed))
        if not self._parts.vmapped:
            self._true = tables.number > 0

        def superstep(i: Any, carry: tuple[Held, Numbers]) -> tuple[Held, Numbers]:
            held, numbers = carry
            merge, merges, first, last = at(tables.supersteps, i)
            held = lax.fori_loop(merge, merges, self._before, held)
            if not self._shape.buckets:
                return held, numbers
            return lax.fori_loop(first, last, self._rounds, (held, numbers))

        shape = tables.rates.shape
        size = max((b.size for b in self._shape.buckets), default=1)
        numbers = Numbers(
            jnp.zeros(shape),
            jnp.ones(shape if self._parts.checks else (0,), bool),
            jnp.zeros((len(tables.rows), size) if self._parts.keeps else (0,)),
        )
        return lax.fori_loop(0, tables.number, superstep, (held, numbers))
