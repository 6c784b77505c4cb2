"""The local rounds of a superstep, in turn or side by side."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hetjax import tree
from hetjax.data.batching import Bucket
from hetjax.engine.programs.task_programs import step_key
from hetjax.runtimes.compiled.program_parts import RunState
from hetjax.runtimes.compiled.stacks import (
    array_row,
    run_if,
    set_array_row,
    tree_row,
    where_rows,
)
from hetjax.runtimes.compiled.stretch_types import Context, StretchResults

Played = tuple[RunState, list[Any], Any, Any]
"""After rounds: run state, leaves of the replicas, losses, means of the last steps."""


class Rounds:
    """The local rounds of a program."""

    def __init__(self, context: Context):
        self._context, self._parts = context, context.parts
        like = self._parts.local, self._parts.requires
        self._step = self._parts.programs.keyed_step_fn(*like)
        self._replica = self._parts.programs.replica_like(*like)

    def line(self, i: Any) -> tuple[Any, Any]:
        """Return line i of the tables of rounds and of their learning rates."""
        tables = self._context.tables
        return array_row(tables.rounds, i), array_row(tables.rates, i)

    def play(
        self, i: Any, carry: tuple[RunState, StretchResults]
    ) -> tuple[RunState, StretchResults]:
        """Play line i: a round, or rounds side by side that share a bucket."""
        rounds, rates = self.line(i)
        play = partial(self._recorded, i, rounds, rates)
        buckets = self._context.shape.buckets
        if len(buckets) == 1:
            return play(buckets[0], carry)
        chosen = rounds[0, 5] if self._parts.vmapped else rounds[5]
        for number, bucket in enumerate(buckets):
            carry = run_if(chosen == number, partial(play, bucket), carry)
        return carry

    def _recorded(
        self,
        i: Any,
        rounds: Any,
        rates: Any,
        bucket: Bucket,
        carry: tuple[RunState, StretchResults],
    ) -> tuple[RunState, StretchResults]:
        (run_state, numbers), parts = carry, self._parts
        play, all_finite = self.in_turn, tree.all_finite
        if parts.vmapped:
            play, all_finite = self.side_by_side, jax.vmap(all_finite)
        steps = jnp.max(rounds[:, 2]) if parts.vmapped else rounds[2]
        steps = 1 if self._context.shape.one_step else steps
        run_state, after, losses, means = play(
            rounds, rates, bucket, steps, run_state, numbers.losses
        )
        finite = numbers.finite
        if parts.checks_finite:
            finite = set_array_row(finite, i, all_finite(after))
        means = set_array_row(numbers.means, i, means)
        return run_state, StretchResults(means, finite, losses)

    def in_turn(
        self,
        local_round: Any,
        rate: Any,
        bucket: Bucket,
        steps: Any,
        run_state: RunState,
        losses: Any,
    ) -> Played:
        """Play a round [6]."""
        context, parts = self._context, self._parts
        worker, start, _, first, n, _ = local_round
        step = self._stepping(bucket)
        before = [tree_row(x, worker) for x in self._sources(run_state)]

        def one(k: Any, carry: tuple) -> tuple:
            leaves, losses, _ = carry
            rows = array_row(context.tables.rows, start + k)
            key = step_key(context.key, worker, first + k)
            after, found, mean = step(leaves, rows, n, rate, key)
            if parts.records_losses:
                losses = losses.at[start + k, : bucket.size].set(found)
            return after, losses, mean

        begin = before, losses, jnp.zeros((), jnp.float32)
        after, losses, mean = self._looped(steps, one, begin)
        changed = parts.changing(after)
        buffers = len(changed) > len(jax.tree.leaves(self._replica.params))
        stacks = context.set_tree_row(
            self._changed_stacks(run_state), worker, changed, apart=buffers
        )
        return self._with_after(run_state, stacks), after, losses, mean

    def side_by_side(
        self,
        rounds: Any,
        rates: Any,
        bucket: Bucket,
        max_steps: Any,
        run_state: RunState,
        losses: Any,
    ) -> Played:
        """Play rounds [n, 6] of at most `max_steps`; absent workers change nothing."""
        context, parts = self._context, self._parts
        workers, starts, steps, first, ns, _ = rounds.T  # [n] each
        step, table = jax.vmap(self._stepping(bucket)), context.tables.rows
        before = [
            jnp.take(x, workers, axis=0, mode="clip") for x in self._sources(run_state)
        ]

        def one(k: Any, carry: tuple) -> tuple:
            leaves, losses, means = carry
            steps_on = k < steps
            place = jnp.where(steps_on, starts + k, len(table))
            rows = jnp.take(table, place, axis=0, mode="clip")
            keys = jax.vmap(partial(step_key, context.key))(workers, first + k)
            after, found, mean = step(leaves, rows, ns, rates, keys)
            if parts.records_losses:
                losses = losses.at[place, : bucket.size].set(found, mode="drop")
            if _is_one(max_steps):
                return after, losses, mean
            after = [
                where_rows(steps_on, new, old) if moves else old
                for new, old, moves in zip(after, leaves, parts.changes, strict=True)
            ]
            return after, losses, jnp.where(steps_on, mean, means)

        begin = before, losses, jnp.zeros(workers.shape, jnp.float32)
        after, losses, means = self._looped(max_steps, one, begin)
        every = zip(self._changed_stacks(run_state), parts.changing(after), strict=True)
        run_state = self._with_after(
            run_state, [x.at[workers].set(value, mode="drop") for x, value in every]
        )
        return run_state, after, losses, means

    def _looped(self, steps: Any, one: Callable, begin: tuple) -> tuple:
        """Loop `one` over the steps; only leaves that steps change are carried."""
        if _is_one(steps):
            return one(0, begin)
        before, *rest = begin
        changing, merged = self._parts.changing, self._parts.merged

        def body(k: Any, carry: tuple) -> tuple:
            leaves, *rest = one(k, (merged(before, carry[0]), *carry[1:]))
            return changing(leaves), *rest

        leaves, *rest = lax.fori_loop(0, steps, body, (changing(before), *rest))
        return merged(before, leaves), *rest

    def _stepping(self, bucket: Bucket) -> Callable:
        """Return step(leaves, rows, n, rate, key) -> (leaves, losses [B], mean)."""
        structure, context = jax.tree.structure(self._replica), self._context

        def step(leaves: list[Any], rows: Any, n: Any, rate: Any, key: Any) -> tuple:
            rows = rows[: bucket.size]
            batch = context.source.batch(context.arrays, rows, n, bucket)
            replica = structure.unflatten(leaves)
            replica, losses, mean = self._step(replica, batch, rate, key)
            return jax.tree.leaves(replica), losses, mean.astype(jnp.float32)

        return step

    def _sources(self, run_state: RunState) -> list[Any]:
        """Return the stacked leaves from which rounds begin."""
        if self._parts.shared and self._parts.vmapped:
            return list(run_state.checked_out)
        return jax.tree.leaves(run_state.replicas)

    def _changed_stacks(self, run_state: RunState) -> list[Any]:
        """Return the stacked leaves that rounds write."""
        if self._parts.shared:
            return list(run_state.finished)
        return self._parts.changing(jax.tree.leaves(run_state.replicas))

    def _with_after(self, run_state: RunState, changed: list[Any]) -> RunState:
        """Return the run state with the stacked leaves that rounds wrote."""
        if self._parts.shared:
            return run_state._replace(finished=tuple(changed))
        return self._parts.with_changed(run_state, changed)


def _is_one(steps: Any) -> bool:
    """Whether it is known while tracing that there is one step."""
    return isinstance(steps, int) and steps == 1
