"""The program of a stretch: supersteps of merges and local rounds, as data.

A superstep has merges, in their order, and then local rounds that do not depend on one
another. Which merges, which rounds, and on which rows are tables of numbers, so that
one program plays any stretch of a run. See `hetjax.runtimes.compiled.chunk`, which
writes the tables.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from hetjax import tree
from hetjax.data.batching import Bucket
from hetjax.engine.programs.task_programs import applied, check_in, fetch_fn, step_key
from hetjax.local import with_merge_buffers
from hetjax.machine.types import MergeOp
from hetjax.merge.group import Group
from hetjax.merge.merge_checks import check_op
from hetjax.merge.types import (
    Merge,
    MergeProperty,
)
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.compiled.parts import Held, Parts, States, at, put, row, written
from hetjax.tree import PyTree

WORKER = -1  # of a merge's members; others are nodes, by the merge that they have
_RATE = WorkerStats._fields.index("learning_rate")
_ACCURACY = WorkerStats._fields.index("accuracy")


class Kind(NamedTuple):
    """A kind of what comes before the rounds of a superstep."""

    what: str  # "merge", "begin", "reset", "begun", "done" or "moved"
    level: int = 0  # of a merge: which merge
    op: MergeOp = MergeOp.FETCH
    members: tuple[int, ...] = ()  # WORKER, or the merge that a node has
    everyone: bool = False  # are the members all workers, in their order?


class Shape(NamedTuple):
    """What one program plays: any stretch of these kinds and shapes."""

    kinds: tuple[Kind, ...]
    buckets: tuple[Bucket, ...]  # shapes of batches; none if there are no rounds
    single: bool  # do all rounds have one step?


class StretchTables(NamedTuple):
    """A stretch as numbers; what is beyond a table's end is not read."""

    seed: Any  # uint32
    supersteps: Any  # int32 [Q, 4]: the first merge, the end; the first round, the end
    number: Any  # int32: of supersteps
    # worker, first row of `rows`, steps, number of its first step, batch size, bucket
    rounds: Any  # int32 [R, 6], or [R, width, 6] where rounds run side by side
    rates: Any  # float32 [R], or [R, width]
    rows: Any  # int32 [S, B]: of the training split, for each step
    merges: Any  # int32 [M, 2 + n]: kind, node, members
    stats: Any  # float32 [M, fields, n]


def scaled(tables: StretchTables, rate: jax.Array) -> StretchTables:
    """The tables with all learning rates multiplied, in the dtype of `rate`."""
    stats = jnp.asarray(tables.stats, rate.dtype)
    return jax.tree.map(jnp.asarray, tables)._replace(
        rates=tables.rates.astype(rate.dtype) * rate,
        stats=stats.at[:, _RATE].multiply(rate),
    )


class Event(NamedTuple):
    """What an event is made of: where all events are of few kinds, no number varies."""

    before: tuple[tuple[Kind, int], ...]  # each so many times in turn
    # bucket, steps, and how many: in turn or side by side, of different workers
    rounds: tuple[tuple[Bucket, int, int], ...]


class Numbers(NamedTuple):
    """What the host is told of a stretch."""

    means: Any  # [R] or [R, width]: the mean loss of each round's last step
    finite: Any  # bool, as `means`: are all numbers finite? [0] if it is not checked
    losses: Any  # [S, B], [0] if they are not kept


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


class _Stretch:
    """The program of one shape."""

    measure: Callable[[Replica], Any] | None = None  # None: the tables have metrics
    _true: Any = None  # as XLA does not know; None: nothing is kept apart

    def __init__(self, parts: Parts, shape: Shape, source: Any):
        self._parts, self._shape, self._source = parts, shape, source
        self._like = jax.eval_shape(parts.programs.task.init, jax.random.key(0))
        begin = parts.programs.replica(parts.local, parts.requires)
        self._replica = jax.eval_shape(begin, *self._like)
        self._step = parts.programs.keyed_step_fn(parts.local, parts.requires)

    def take(self, arrays: Any, tables: StretchTables, key: Any) -> None:
        """Take what is played."""
        self._arrays, self._tables, self._key = arrays, tables, key

    def event(self, event: Event, held: Held, merge: Any, first: Any) -> Held:
        """Play an event, whose merges and rounds begin at these places."""
        for kind, number in event.before:
            held = _repeated(number, partial(self._play, kind), merge, held)
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

            held = _repeated(number, one, first, held)
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

    # -- rounds ------------------------------------------------------------------------

    def _rounds(self, i: Any, carry: tuple[Held, Numbers]) -> tuple[Held, Numbers]:
        """Play a round, or a row of rounds side by side, all in one bucket."""
        rounds = at(self._tables.rounds, i)
        play = self._side_by_side if self._parts.vmapped else self._in_turn
        if len(self._shape.buckets) == 1:
            return play(i, self._shape.buckets[0], carry)
        chosen = rounds[0, 5] if self._parts.vmapped else rounds[5]
        for number, bucket in enumerate(self._shape.buckets):
            carry = _if(chosen == number, partial(play, i, bucket), carry)
        return carry

    def _in_turn(
        self, i: Any, bucket: Bucket, carry: tuple[Held, Numbers]
    ) -> tuple[Held, Numbers]:
        held, numbers = carry
        steps = 1 if self._shape.single else at(self._tables.rounds, i)[2]
        held, after, losses, mean = self._round(i, bucket, steps, held, numbers.losses)
        finite = numbers.finite
        if self._parts.checks:
            finite = written(finite, i, tree.all_finite(after))
        return held, Numbers(written(numbers.means, i, mean), finite, losses)

    def _round(
        self, i: Any, bucket: Bucket, steps: Any, held: Held, losses: Any
    ) -> tuple[Held, list[Any], Any, Any]:
        """Play round i -> (held, the replica's leaves, losses, mean of last step)."""
        worker, start, _, first, n, _ = at(self._tables.rounds, i)
        rate, step = at(self._tables.rates, i), self._stepping(bucket)
        before = [row(x, worker) for x in self._sources(held)]

        def one(k: Any, carry: tuple) -> tuple:
            leaves, losses, _ = carry
            rows = at(self._tables.rows, start + k)
            after, found, mean = step(
                leaves, rows, n, rate, step_key(self._key, worker, first + k)
            )
            if self._parts.keeps:
                losses = losses.at[start + k, : bucket.size].set(found)
            return after, losses, mean

        begin = (before, losses, jnp.zeros((), jnp.float32))
        alone = isinstance(steps, int) and steps == 1
        after, losses, mean = (
            one(0, begin) if alone else self._looped(steps, one, begin)
        )
        changed = self._changing(after)
        buffers = len(changed) > len(jax.tree.leaves(self._replica.params))
        stacks = self._changed_stacks(held)
        stacks = self._put(stacks, worker, changed, apart=buffers)
        return self._with_after(held, stacks), after, losses, mean

    def _put(
        self, stacks: Any, index: Any, new: Any, old: Any = None, *, apart: bool = True
    ) -> Any:
        """As `put`."""
        return self._write(partial(put, index=index, new=new, old=old), stacks, apart)

    def _write(self, write: Callable[[Any], Any], stacks: Any, apart: bool) -> Any:
        """`write(stacks)`; `apart`: once all that is read of them has been read.

        In one piece, XLA reads rows of a stack where they are used, among the writes,
        and copies the whole stack before it.
        """
        if self._true is None or not apart:
            return write(stacks)
        return _if(self._true, write, stacks)

    def _looped(self, steps: Any, one: Callable, begin: tuple) -> tuple:
        """`one` for each step; leaves that no step changes are not carried along."""
        before, *rest = begin

        def body(k: Any, carry: tuple) -> tuple:
            leaves, *rest = one(k, (self._merged(before, carry[0]), *carry[1:]))
            return self._changing(leaves), *rest

        leaves, *rest = lax.fori_loop(0, steps, body, (self._changing(before), *rest))
        return self._merged(before, leaves), *rest

    def _changing(self, leaves: list[Any]) -> list[Any]:
        return [
            x for x, moves in zip(leaves, self._parts.changes, strict=True) if moves
        ]

    def _merged(self, before: list[Any], changed: list[Any]) -> list[Any]:
        """All leaves: those that change, and the others as they were."""
        new = iter(changed)
        return [
            next(new) if moves else x
            for x, moves in zip(before, self._parts.changes, strict=True)
        ]

    def _side_by_side(
        self, i: Any, bucket: Bucket, carry: tuple[Held, Numbers]
    ) -> tuple[Held, Numbers]:
        """Rounds of several workers; one that stands for no worker changes nothing."""
        held, numbers = carry
        rounds, rates = at(self._tables.rounds, i), at(self._tables.rates, i)
        most = 1 if self._shape.single else jnp.max(rounds[:, 2])
        held, after, losses, means = self._rounds_at_once(
            rounds, rates, bucket, most, held, numbers.losses
        )
        finite = numbers.finite
        if self._parts.checks:
            finite = written(finite, i, jax.vmap(tree.all_finite)(after))
        return held, Numbers(written(numbers.means, i, means), finite, losses)

    def _rounds_at_once(
        self,
        rounds: Any,
        rates: Any,
        bucket: Bucket,
        most: Any,
        held: Held,
        losses: Any,
    ) -> tuple[Held, list[Any], Any, Any]:
        """Play rounds [n, 6] of workers, of `most` steps at most; see `_round`."""
        workers, starts, steps, first, ns, _ = rounds.T  # [n] each
        step = jax.vmap(self._stepping(bucket))
        alone = isinstance(most, int) and most == 1
        before = [
            jnp.take(x, workers, axis=0, mode="clip") for x in self._sources(held)
        ]

        def one(k: Any, carry: tuple) -> tuple:
            leaves, losses, means = carry
            steps_on = k < steps
            place = jnp.where(steps_on, starts + k, len(self._tables.rows))
            rows = jnp.take(self._tables.rows, place, axis=0, mode="clip")
            keys = jax.vmap(partial(step_key, self._key))(workers, first + k)
            after, found, mean = step(leaves, rows, ns, rates, keys)
            if self._parts.keeps:
                losses = losses.at[place, : bucket.size].set(found, mode="drop")
            if alone:
                return after, losses, mean
            after = [
                _where(steps_on, new, old) if moves else old
                for new, old, moves in zip(
                    after, leaves, self._parts.changes, strict=True
                )
            ]
            return after, losses, jnp.where(steps_on, mean, means)

        begin = (before, losses, jnp.zeros(workers.shape, jnp.float32))
        after, losses, means = (
            one(0, begin) if alone else self._looped(most, one, begin)
        )

        every = zip(self._changed_stacks(held), self._changing(after), strict=True)
        held = self._with_after(
            held, [x.at[workers].set(value, mode="drop") for x, value in every]
        )
        return held, after, losses, means

    def _stepping(self, bucket: Bucket) -> Callable:
        """step(leaves, rows, n, rate, key) -> (leaves, losses [B], mean)."""
        structure = jax.tree.structure(self._replica)

        def step(
            leaves: list[Any], rows: Any, n: Any, rate: Any, key: Any
        ) -> tuple[list[Any], Any, Any]:
            batch = self._source.batch(self._arrays, rows[: bucket.size], n, bucket)
            replica = structure.unflatten(leaves)
            replica, losses, mean = self._step(replica, batch, rate, key)
            return jax.tree.leaves(replica), losses, mean.astype(jnp.float32)

        return step

    def _sources(self, held: Held) -> list[Any]:
        """The stacked leaves of the replicas from which rounds begin."""
        copied = self._parts.shared and self._parts.vmapped
        return list(held.begun) if copied else jax.tree.leaves(held.replicas)

    def _changed_stacks(self, held: Held) -> list[Any]:
        """The stacked leaves that rounds write."""
        if self._parts.shared:
            return list(held.done)
        return self._changing(jax.tree.leaves(held.replicas))

    def _with_after(self, held: Held, changed: list[Any]) -> Held:
        """With these stacked leaves, which rounds have written."""
        if self._parts.shared:
            return held._replace(done=tuple(changed))
        leaves, structure = jax.tree.flatten(held.replicas)
        merged = structure.unflatten(self._merged(leaves, changed))
        return held._replace(replicas=merged)

    # -- what comes before rounds ------------------------------------------------------

    def _before(self, i: Any, held: Held) -> Held:
        """Carry out a merge, or what else comes before rounds."""
        kinds = self._shape.kinds
        if len(kinds) == 1:
            return self._play(kinds[0], i, held)
        chosen = at(self._tables.merges, i)[0]
        for number, kind in enumerate(kinds):
            held = _if(chosen == number, partial(self._play, kind, i), held)
        return held

    def _play(self, kind: Kind, i: Any, held: Held) -> Held:
        if kind.what == "merge":
            return self._merge(kind, i, held)
        parts, worker = self._parts, at(self._tables.merges, i)[2]
        if kind.what == "begun":
            return self._begun(held, worker)
        if kind.what == "done":
            return self._done(held, worker)
        now = row(held.replicas, worker)
        if kind.what == "moved":
            new, old = self._moved(held, worker, now), now
        else:
            new, old = parts.new_replica(held.states, self._like), None
            if kind.what == "reset":
                new = with_merge_buffers(new, now, parts.requires)
        return held._replace(replicas=self._put(held.replicas, worker, new, old))

    def _begun(self, held: Held, worker: Any) -> Held:
        """Copy what a round begins from, as merges may change it."""
        leaves = zip(jax.tree.leaves(held.replicas), self._parts.copied, strict=True)
        now = [row(x, worker) for x, copied in leaves if copied]
        return held._replace(begun=self._put(held.begun, worker, now))

    def _done(self, held: Held, worker: Any) -> Held:
        """A round arrives whose replica no merge has changed."""
        leaves, structure = jax.tree.flatten(held.replicas)
        new = self._put(self._changing(leaves), worker, row(held.done, worker))
        merged = structure.unflatten(self._merged(leaves, new))
        return held._replace(replicas=merged)

    def _moved(self, held: Held, worker: Any, now: Replica) -> Replica:
        """A round arrives whose replica merges have changed: both changes count."""
        leaves, structure = jax.tree.flatten(now)
        begun, done = iter(held.begun), iter(held.done)
        masks = list(zip(self._parts.copied, self._parts.changes, strict=True))
        before = [
            row(next(begun), worker) if copied else x
            for x, (copied, _) in zip(leaves, masks, strict=True)
        ]
        after = [
            row(next(done), worker) if moves else x
            for x, (_, moves) in zip(before, masks, strict=True)
        ]
        new = check_in(now, structure.unflatten(before), structure.unflatten(after))
        # what is neither written by steps nor copied stays as it is
        kept = [
            x if any(mask) else old
            for x, old, mask in zip(jax.tree.leaves(new), leaves, masks, strict=True)
        ]
        return structure.unflatten(kept)

    def _merge(self, kind: Kind, i: Any, held: Held) -> Held:
        parts, n = self._parts, len(kind.members)
        merge, (_, node, *members) = parts.merges[kind.level], self._line(i, n)
        members = range(n) if kind.everyone else members
        state = parts.state(held.states, kind.level, node)
        # a rule of one's own may go through the members one by one
        ours = merge.apply.__module__.partition(".")[0] == __name__.partition(".")[0]
        grouped = MergeProperty.TAKES_GROUPS in merge.properties
        stacks = n > 1 and grouped and ours
        if stacks and all(m == WORKER for m in kind.members):
            return self._merge_stack(kind, i, held, state)
        before = tuple(
            row(held.replicas, m) if of == WORKER else self._member(held, of, m)
            for of, m in zip(kind.members, members, strict=True)
        )
        packed = self._stats(kind, i, lambda of: jnp.stack([of(r) for r in before]))
        new, after = _merged(merge, state, before, packed, kind.op)
        of_nodes = [(kind.level, node, new, state)]
        of_workers = []
        for of, m, old, replica in zip(
            kind.members, members, before, after, strict=True
        ):
            if of == WORKER:
                of_workers.append((m, replica, old))
                continue
            child = parts.state(held.states, of, m)
            adopt = parts.merges[of].from_parent
            assert adopt is not None  # checked where it is a member
            of_nodes.append((of, m, adopt(child, replica), child))

        def write(now: tuple[Replica, States]) -> tuple[Replica, States]:
            replicas, states = now
            for changed in of_workers:
                replicas = put(replicas, *changed)
            for level, *changed in of_nodes:
                states = parts.with_state(states, level, *changed)
            return replicas, states

        given = [x for _, *pair in of_workers for x in _different(*pair)]
        fetched = {id(x) for x in jax.tree.leaves(new)}  # these do not read the stacks
        reads = len(of_nodes) > 1 or not {id(x) for x in given} <= fetched
        replicas, states = self._write(write, (held.replicas, held.states), reads)
        return held._replace(replicas=replicas, states=states)

    def _line(self, i: Any, n: int) -> Any:
        """Kind, node and n members of a merge."""
        return at(self._tables.merges, i)[: 2 + n]

    def _member(self, held: Held, level: int, node: Any) -> Replica:
        """A node as a member of a merge."""
        of = self._parts.programs.as_member(self._parts.merges[level])
        return of(self._parts.state(held.states, level, node))

    def _stats(self, kind: Kind, i: Any, of_each: Callable[[Callable], Any]) -> Any:
        """Packed statistics; `of_each(f)` are [n] f(member)."""
        packed = at(self._tables.stats, i)[:, : len(kind.members)]
        required = self._parts.merges[kind.level].required_metrics
        if self.measure is None or not required or MergeOp.PUSH not in kind.op:
            return packed
        metrics = of_each(self.measure).astype(packed.dtype)
        return packed.at[_ACCURACY].set(metrics)

    def _merge_stack(self, kind: Kind, i: Any, held: Held, state: PyTree) -> Held:
        """A merge of several workers, all at once."""
        parts, n = self._parts, len(kind.members)
        merge, line = parts.merges[kind.level], self._line(i, n)
        node, members = line[1], line[2:]
        before = held.replicas
        if not kind.everyone:
            before = jax.tree.map(lambda x: x[members], before)
        group = Group((before,), stacked=n)
        packed = self._stats(kind, i, lambda of: jax.vmap(of)(before))
        new, (after,) = _merged(merge, state, group, packed, kind.op)

        def one(leaf: Any, value: Any, old: Any) -> Any:
            if value is old:
                return leaf
            value = jnp.asarray(value, leaf.dtype)
            return value if kind.everyone else leaf.at[members].set(value)

        def write(now: tuple[Replica, States]) -> tuple[Replica, States]:
            replicas, states = now
            states = parts.with_state(states, kind.level, node, new, state)
            return jax.tree.map(one, replicas, after, before), states

        reads = not kind.everyone  # else whole stacks take the place of the old ones
        replicas, states = self._write(write, (held.replicas, held.states), reads)
        return held._replace(replicas=replicas, states=states)


def _merged(
    merge: Merge, state: PyTree, replicas: Any, packed: Any, op: MergeOp
) -> tuple[PyTree, Any]:
    """(state, replicas) after a merge or a fetch of a tuple, or of a stacked group."""
    if op != MergeOp.FETCH:
        check_op("this strategy", op, merge.ops)
        return applied(merge, state, replicas, WorkerStats.unpacked(packed), op)
    fetch = fetch_fn(merge)
    if not isinstance(replicas, Group):
        return state, fetch(state, replicas)
    return state, replicas.each(lambda r: fetch(state, (r,))[0]).members


def _different(new: PyTree, old: PyTree) -> list[Any]:
    """The leaves that are not the `old` ones themselves."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return [x for x, was in pairs if x is not was]


def _if(chosen: Any, play: Callable, carry: Any) -> Any:
    """`play(carry)` if it is chosen: a loop of one turn, which changes arrays in place.

    A `lax.cond` would copy all of them.
    """
    return lax.fori_loop(0, chosen.astype(jnp.int32), lambda _, now: play(now), carry)


def _repeated(number: int, play: Callable, start: Any, held: Held) -> Held:
    """play(i, held) for each of a number of places from `start` on."""
    if number == 1:
        return play(start, held)
    return lax.fori_loop(0, number, lambda i, held: play(start + i, held), held)


def _where(chosen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)
