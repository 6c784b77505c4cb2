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
from hetjax.runtimes.compiled.stretch_base import StretchBase
from hetjax.runtimes.compiled.stretch_types import StretchResults


class StretchRounds(StretchBase):
    """The local rounds of a superstep."""

    def _rounds(
        self, i: Any, carry: tuple[RunState, StretchResults]
    ) -> tuple[RunState, StretchResults]:
        """Play a round, or a group of rounds side by side that share a bucket."""
        rounds = array_row(self._tables.rounds, i)
        play = self._side_by_side if self._parts.vmapped else self._in_turn
        if len(self._shape.buckets) == 1:
            return play(i, self._shape.buckets[0], carry)
        chosen = rounds[0, 5] if self._parts.vmapped else rounds[5]
        for number, bucket in enumerate(self._shape.buckets):
            carry = run_if(chosen == number, partial(play, i, bucket), carry)
        return carry

    def _in_turn(
        self, i: Any, bucket: Bucket, carry: tuple[RunState, StretchResults]
    ) -> tuple[RunState, StretchResults]:
        run_state, numbers = carry
        steps = 1 if self._shape.one_step else array_row(self._tables.rounds, i)[2]
        run_state, after, losses, mean = self._round(
            i, bucket, steps, run_state, numbers.losses
        )
        finite = numbers.finite
        if self._parts.checks_finite:
            finite = set_array_row(finite, i, tree.all_finite(after))
        return run_state, StretchResults(
            set_array_row(numbers.means, i, mean), finite, losses
        )

    def _round(
        self, i: Any, bucket: Bucket, steps: Any, run_state: RunState, losses: Any
    ) -> tuple[RunState, list[Any], Any, Any]:
        """Play round i -> (run_state, replica's leaves, losses, mean of last step)."""
        worker, start, _, first, n, _ = array_row(self._tables.rounds, i)
        rate, step = array_row(self._tables.rates, i), self._stepping(bucket)
        before = [tree_row(x, worker) for x in self._sources(run_state)]

        def one(k: Any, carry: tuple) -> tuple:
            leaves, losses, _ = carry
            rows = array_row(self._tables.rows, start + k)
            after, found, mean = step(
                leaves, rows, n, rate, step_key(self._key, worker, first + k)
            )
            if self._parts.records_losses:
                losses = losses.at[start + k, : bucket.size].set(found)
            return after, losses, mean

        begin = (before, losses, jnp.zeros((), jnp.float32))
        alone = isinstance(steps, int) and steps == 1
        after, losses, mean = (
            one(0, begin) if alone else self._looped(steps, one, begin)
        )
        changed = self._changing(after)
        buffers = len(changed) > len(jax.tree.leaves(self._replica.params))
        stacks = self._changed_stacks(run_state)
        stacks = self._set_tree_row(stacks, worker, changed, apart=buffers)
        return self._with_after(run_state, stacks), after, losses, mean

    def _looped(self, steps: Any, one: Callable, begin: tuple) -> tuple:
        """Loop `one` over the steps; only leaves that steps change are carried."""
        before, *rest = begin

        def body(k: Any, carry: tuple) -> tuple:
            leaves, *rest = one(k, (self._merged(before, carry[0]), *carry[1:]))
            return self._changing(leaves), *rest

        leaves, *rest = lax.fori_loop(0, steps, body, (self._changing(before), *rest))
        return self._merged(before, leaves), *rest

    def _side_by_side(
        self, i: Any, bucket: Bucket, carry: tuple[RunState, StretchResults]
    ) -> tuple[RunState, StretchResults]:
        """Play a group of rounds; lanes without a worker change nothing."""
        run_state, numbers = carry
        rounds, rates = (
            array_row(self._tables.rounds, i),
            array_row(self._tables.rates, i),
        )
        max_steps = 1 if self._shape.one_step else jnp.max(rounds[:, 2])
        run_state, after, losses, means = self._rounds_at_once(
            rounds, rates, bucket, max_steps, run_state, numbers.losses
        )
        finite = numbers.finite
        if self._parts.checks_finite:
            finite = set_array_row(finite, i, jax.vmap(tree.all_finite)(after))
        return run_state, StretchResults(
            set_array_row(numbers.means, i, means), finite, losses
        )

    def _rounds_at_once(
        self,
        rounds: Any,
        rates: Any,
        bucket: Bucket,
        max_steps: Any,
        run_state: RunState,
        losses: Any,
    ) -> tuple[RunState, list[Any], Any, Any]:
        """Play rounds [n, 6] with at most `max_steps` steps each; see `_round`."""
        workers, starts, steps, first, ns, _ = rounds.T  # [n] each
        step = jax.vmap(self._stepping(bucket))
        alone = isinstance(max_steps, int) and max_steps == 1
        before = [
            jnp.take(x, workers, axis=0, mode="clip") for x in self._sources(run_state)
        ]

        def one(k: Any, carry: tuple) -> tuple:
            leaves, losses, means = carry
            steps_on = k < steps
            place = jnp.where(steps_on, starts + k, len(self._tables.rows))
            rows = jnp.take(self._tables.rows, place, axis=0, mode="clip")
            keys = jax.vmap(partial(step_key, self._key))(workers, first + k)
            after, found, mean = step(leaves, rows, ns, rates, keys)
            if self._parts.records_losses:
                losses = losses.at[place, : bucket.size].set(found, mode="drop")
            if alone:
                return after, losses, mean
            after = [
                where_rows(steps_on, new, old) if moves else old
                for new, old, moves in zip(
                    after, leaves, self._parts.changes, strict=True
                )
            ]
            return after, losses, jnp.where(steps_on, mean, means)

        begin = (before, losses, jnp.zeros(workers.shape, jnp.float32))
        after, losses, means = (
            one(0, begin) if alone else self._looped(max_steps, one, begin)
        )

        every = zip(self._changed_stacks(run_state), self._changing(after), strict=True)
        run_state = self._with_after(
            run_state, [x.at[workers].set(value, mode="drop") for x, value in every]
        )
        return run_state, after, losses, means

    def _stepping(self, bucket: Bucket) -> Callable:
        """Return step(leaves, rows, n, rate, key) -> (leaves, losses [B], mean)."""
        structure = jax.tree.structure(self._replica)

        def step(
            leaves: list[Any], rows: Any, n: Any, rate: Any, key: Any
        ) -> tuple[list[Any], Any, Any]:
            batch = self._source.batch(self._arrays, rows[: bucket.size], n, bucket)
            replica = structure.unflatten(leaves)
            replica, losses, mean = self._step(replica, batch, rate, key)
            return jax.tree.leaves(replica), losses, mean.astype(jnp.float32)

        return step

    def _sources(self, run_state: RunState) -> list[Any]:
        """Return the stacked leaves from which rounds begin."""
        copied = self._parts.shared and self._parts.vmapped
        return (
            list(run_state.checked_out)
            if copied
            else jax.tree.leaves(run_state.replicas)
        )

    def _changed_stacks(self, run_state: RunState) -> list[Any]:
        """Return the stacked leaves that rounds write."""
        if self._parts.shared:
            return list(run_state.finished)
        return self._changing(jax.tree.leaves(run_state.replicas))

    def _with_after(self, run_state: RunState, changed: list[Any]) -> RunState:
        """Return the run state with the stacked leaves that rounds wrote."""
        if self._parts.shared:
            return run_state._replace(finished=tuple(changed))
        leaves, structure = jax.tree.flatten(run_state.replicas)
        merged = structure.unflatten(self._merged(leaves, changed))
        return run_state._replace(replicas=merged)
