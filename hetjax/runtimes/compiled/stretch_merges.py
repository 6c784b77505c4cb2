"""The operations before the rounds of a superstep: merges, check-outs, check-ins."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hetjax.engine.programs.merge_functions import applied, check_in, fetch_fn
from hetjax.local import with_merge_buffers
from hetjax.machine.types import MergeOp
from hetjax.merge.group import Group
from hetjax.merge.merge_checks import check_op
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.compiled.program_parts import RunState, States
from hetjax.runtimes.compiled.stacks import (
    array_row,
    replaced_leaves,
    run_if,
    set_tree_row,
    tree_row,
)
from hetjax.runtimes.compiled.stretch_types import WORKER, Context, OperationKind
from hetjax.tree import PyTree

_ACCURACY = WorkerStats._fields.index("accuracy")


class Operations:
    """The operations of a program before rounds."""

    def __init__(self, context: Context):
        self._context, self._parts = context, context.parts
        self._like = context.parts.programs.model_like

    def play_line(self, i: Any, run_state: RunState) -> RunState:
        """Carry out operation i of the table of merges."""
        kinds = self._context.shape.kinds
        if len(kinds) == 1:
            return self.play(kinds[0], i, run_state)
        chosen = array_row(self._context.tables.merges, i)[0]
        for number, kind in enumerate(kinds):
            run_state = run_if(chosen == number, partial(self.play, kind, i), run_state)
        return run_state

    def play(self, kind: OperationKind, i: Any, run_state: RunState) -> RunState:
        """Carry out operation i, which is of this kind."""
        if kind.what == "merge":
            return self._merge(kind, i, run_state)
        context, parts = self._context, self._parts
        worker = array_row(context.tables.merges, i)[2]
        leaves = jax.tree.leaves(run_state.replicas)
        if kind.what == "check_out":  # copy what a round begins from
            copied = zip(leaves, parts.copied, strict=True)
            now = [tree_row(x, worker) for x, is_copied in copied if is_copied]
            return run_state._replace(
                checked_out=context.set_tree_row(run_state.checked_out, worker, now)
            )
        if kind.what == "check_in":  # of a replica that no merge has changed meanwhile
            done = tree_row(run_state.finished, worker)
            new = context.set_tree_row(parts.changing(leaves), worker, done)
            return parts.with_changed(run_state, new)
        now = tree_row(run_state.replicas, worker)
        if kind.what == "check_in_merged":
            new, old = self._check_in_merged(run_state, worker, now), now
        else:
            new, old = parts.new_replica(run_state.states, self._like), None
            if kind.what == "reset":
                new = with_merge_buffers(new, now, parts.requires)
        replicas = context.set_tree_row(run_state.replicas, worker, new, old)
        return run_state._replace(replicas=replicas)

    def _check_in_merged(
        self, run_state: RunState, worker: Any, now: Replica
    ) -> Replica:
        """Check in a replica that merges have changed as well: apply both changes."""
        leaves, structure = jax.tree.flatten(now)
        begun, copied = iter(run_state.checked_out), self._parts.copied
        before = [
            tree_row(next(begun), worker) if is_copied else x
            for x, is_copied in zip(leaves, copied, strict=True)
        ]
        done = [tree_row(x, worker) for x in run_state.finished]
        after = self._parts.merged(before, done)
        new = check_in(now, structure.unflatten(before), structure.unflatten(after))
        # leaves that are neither changed by steps nor copied stay as they are
        masks = zip(copied, self._parts.changes, strict=True)
        merged = [
            x if any(mask) else old
            for x, old, mask in zip(jax.tree.leaves(new), leaves, masks, strict=True)
        ]
        return structure.unflatten(merged)

    # -- merges ------------------------------------------------------------------------

    def _merge(self, kind: OperationKind, i: Any, run_state: RunState) -> RunState:
        parts, n = self._parts, len(kind.members)
        line = array_row(self._context.tables.merges, i)[: 2 + n]
        merge, node, members = self._merge_of(kind), line[1], line[2:]
        state = parts.state(run_state.states, kind.level, node)
        # a custom merge may iterate over the members
        ours = merge.apply.__module__.partition(".")[0] == __name__.partition(".")[0]
        grouped = ours and n > 1 and MergeProperty.TAKES_GROUPS in merge.properties
        merge_all = self._merge_each
        if grouped and all(m == WORKER for m in kind.members):
            merge_all = self._merge_stack
        return merge_all(kind, i, run_state, node, members, state)

    def _merge_each(
        self,
        kind: OperationKind,
        i: Any,
        run_state: RunState,
        node: Any,
        members: Any,
        state: PyTree,
    ) -> RunState:
        """Merge a tuple of members."""
        parts = self._parts
        numbers = range(len(kind.members)) if kind.all_workers else members
        before = tuple(
            tree_row(run_state.replicas, m)
            if of == WORKER
            else self._member(run_state, of, m)
            for of, m in zip(kind.members, numbers, strict=True)
        )
        packed = self._stats(kind, i, lambda of: jnp.stack([of(r) for r in before]))
        new, after = _merged(self._merge_of(kind), state, before, packed, kind.op)
        of_nodes, of_workers = [(kind.level, node, new, state)], []
        for of, m, old, replica in zip(
            kind.members, numbers, before, after, strict=True
        ):
            if of == WORKER:
                of_workers.append((m, replica, old))
                continue
            child = parts.state(run_state.states, of, m)
            adopt = parts.merges[of].from_parent
            assert adopt is not None  # checked where it is a member
            of_nodes.append((of, m, adopt(child, replica), child))

        def write(now: tuple[Replica, States]) -> tuple[Replica, States]:
            replicas, states = now
            for changed in of_workers:
                replicas = set_tree_row(replicas, *changed)
            for level, *changed in of_nodes:
                states = parts.with_state(states, level, *changed)
            return replicas, states

        given = [x for _, *pair in of_workers for x in replaced_leaves(*pair)]
        fetched = {id(x) for x in jax.tree.leaves(new)}  # these do not read the stacks
        reads = len(of_nodes) > 1 or not {id(x) for x in given} <= fetched
        return self._written(write, run_state, apart=reads)

    def _merge_stack(
        self,
        kind: OperationKind,
        i: Any,
        run_state: RunState,
        node: Any,
        members: Any,
        state: PyTree,
    ) -> RunState:
        """Merge several workers as a stacked group."""
        parts, before = self._parts, run_state.replicas
        if not kind.all_workers:
            before = jax.tree.map(lambda x: x[members], before)
        group = Group((before,), stacked=len(kind.members))
        packed = self._stats(kind, i, lambda of: jax.vmap(of)(before))
        new, (after,) = _merged(self._merge_of(kind), state, group, packed, kind.op)

        def one(leaf: Any, value: Any, old: Any) -> Any:
            if value is old:
                return leaf
            value = jnp.asarray(value, leaf.dtype)
            return value if kind.all_workers else leaf.at[members].set(value)

        def write(now: tuple[Replica, States]) -> tuple[Replica, States]:
            replicas, states = now
            states = parts.with_state(states, kind.level, node, new, state)
            return jax.tree.map(one, replicas, after, before), states

        # the stacks of all workers replace the old ones
        return self._written(write, run_state, apart=not kind.all_workers)

    def _written(
        self, write: Callable, run_state: RunState, *, apart: bool
    ) -> RunState:
        now = run_state.replicas, run_state.states
        replicas, states = self._context.write(write, now, apart)
        return run_state._replace(replicas=replicas, states=states)

    def _merge_of(self, kind: OperationKind) -> Merge:
        parts = self._parts
        return parts.programs.part_of(parts.merges[kind.level], kind.part)

    def _member(self, run_state: RunState, level: int, node: Any) -> Replica:
        """Return a node as a member of a merge."""
        of = self._parts.programs.as_member(self._parts.merges[level])
        return of(self._parts.state(run_state.states, level, node))

    def _stats(
        self, kind: OperationKind, i: Any, of_each: Callable[[Callable], Any]
    ) -> Any:
        """Return packed statistics; `of_each(f)` maps f over the members, [n]."""
        packed = array_row(self._context.tables.stats, i)[:, : len(kind.members)]
        measure = self._context.measure
        required = self._parts.merges[kind.level].required_metrics
        if measure is None or not required or MergeOp.PUSH not in kind.op:
            return packed
        return packed.at[_ACCURACY].set(of_each(measure).astype(packed.dtype))


def _merged(
    merge: Merge, state: PyTree, replicas: Any, packed: Any, op: MergeOp
) -> tuple[PyTree, Any]:
    """Merge or fetch a tuple of replicas or a stacked group -> (state, replicas)."""
    if op != MergeOp.FETCH:
        check_op("this strategy", op, merge.ops)
        return applied(merge, state, replicas, WorkerStats.unpacked(packed), op)
    fetch = fetch_fn(merge)
    if not isinstance(replicas, Group):
        return state, fetch(state, replicas)
    return state, replicas.each(lambda r: fetch(state, (r,))[0]).members
