"""The operations before the rounds of a superstep: merges, check-outs, check-ins."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hetjax.engine.programs.task_programs import applied, check_in, fetch_fn
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
from hetjax.runtimes.compiled.stretch_base import StretchBase
from hetjax.runtimes.compiled.stretch_types import WORKER, OperationKind
from hetjax.tree import PyTree

_ACCURACY = WorkerStats._fields.index("accuracy")


class StretchMerges(StretchBase):
    """The operations before the rounds of a superstep."""

    def _before(self, i: Any, run_state: RunState) -> RunState:
        """Carry out operation i of the table of merges."""
        kinds = self._shape.kinds
        if len(kinds) == 1:
            return self._play(kinds[0], i, run_state)
        chosen = array_row(self._tables.merges, i)[0]
        for number, kind in enumerate(kinds):
            run_state = run_if(
                chosen == number, partial(self._play, kind, i), run_state
            )
        return run_state

    def _play(self, kind: OperationKind, i: Any, run_state: RunState) -> RunState:
        if kind.what == "merge":
            return self._merge(kind, i, run_state)
        parts, worker = self._parts, array_row(self._tables.merges, i)[2]
        if kind.what == "check_out":
            return self._check_out(run_state, worker)
        if kind.what == "check_in":
            return self._check_in(run_state, worker)
        now = tree_row(run_state.replicas, worker)
        if kind.what == "check_in_merged":
            new, old = self._check_in_merged(run_state, worker, now), now
        else:
            new, old = parts.new_replica(run_state.states, self._like), None
            if kind.what == "reset":
                new = with_merge_buffers(new, now, parts.requires)
        return run_state._replace(
            replicas=self._set_tree_row(run_state.replicas, worker, new, old)
        )

    def _check_out(self, run_state: RunState, worker: Any) -> RunState:
        """Copy the leaves that a round begins from, as merges may change them."""
        leaves = zip(
            jax.tree.leaves(run_state.replicas), self._parts.copied, strict=True
        )
        now = [tree_row(x, worker) for x, copied in leaves if copied]
        return run_state._replace(
            checked_out=self._set_tree_row(run_state.checked_out, worker, now)
        )

    def _check_in(self, run_state: RunState, worker: Any) -> RunState:
        """Check in a replica that no merge has changed during its round."""
        leaves, structure = jax.tree.flatten(run_state.replicas)
        new = self._set_tree_row(
            self._changing(leaves), worker, tree_row(run_state.finished, worker)
        )
        merged = structure.unflatten(self._merged(leaves, new))
        return run_state._replace(replicas=merged)

    def _check_in_merged(
        self, run_state: RunState, worker: Any, now: Replica
    ) -> Replica:
        """Check in a replica that merges have changed as well: apply both changes."""
        leaves, structure = jax.tree.flatten(now)
        begun, done = iter(run_state.checked_out), iter(run_state.finished)
        masks = list(zip(self._parts.copied, self._parts.changes, strict=True))
        before = [
            tree_row(next(begun), worker) if copied else x
            for x, (copied, _) in zip(leaves, masks, strict=True)
        ]
        after = [
            tree_row(next(done), worker) if moves else x
            for x, (_, moves) in zip(before, masks, strict=True)
        ]
        new = check_in(now, structure.unflatten(before), structure.unflatten(after))
        # leaves that are neither changed by steps nor copied stay as they are
        merged = [
            x if any(mask) else old
            for x, old, mask in zip(jax.tree.leaves(new), leaves, masks, strict=True)
        ]
        return structure.unflatten(merged)

    def _merge(self, kind: OperationKind, i: Any, run_state: RunState) -> RunState:
        parts, n = self._parts, len(kind.members)
        merge, (_, node, *members) = parts.merges[kind.level], self._line(i, n)
        members = range(n) if kind.all_workers else members
        state = parts.state(run_state.states, kind.level, node)
        # a custom merge may iterate over the members
        ours = merge.apply.__module__.partition(".")[0] == __name__.partition(".")[0]
        grouped = MergeProperty.TAKES_GROUPS in merge.properties
        stacks = n > 1 and grouped and ours
        if stacks and all(m == WORKER for m in kind.members):
            return self._merge_stack(kind, i, run_state, state)
        before = tuple(
            tree_row(run_state.replicas, m)
            if of == WORKER
            else self._member(run_state, of, m)
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
        replicas, states = self._write(
            write, (run_state.replicas, run_state.states), reads
        )
        return run_state._replace(replicas=replicas, states=states)

    def _line(self, i: Any, n: int) -> Any:
        """Return the kind, the node and the n members of a merge."""
        return array_row(self._tables.merges, i)[: 2 + n]

    def _member(self, run_state: RunState, level: int, node: Any) -> Replica:
        """Return a node as a member of a merge."""
        of = self._parts.programs.as_member(self._parts.merges[level])
        return of(self._parts.state(run_state.states, level, node))

    def _stats(
        self, kind: OperationKind, i: Any, of_each: Callable[[Callable], Any]
    ) -> Any:
        """Return packed statistics; `of_each(f)` maps f over the members, [n]."""
        packed = array_row(self._tables.stats, i)[:, : len(kind.members)]
        required = self._parts.merges[kind.level].required_metrics
        if self.measure is None or not required or MergeOp.PUSH not in kind.op:
            return packed
        metrics = of_each(self.measure).astype(packed.dtype)
        return packed.at[_ACCURACY].set(metrics)

    def _merge_stack(
        self, kind: OperationKind, i: Any, run_state: RunState, state: PyTree
    ) -> RunState:
        """Merge several workers as a stacked group."""
        parts, n = self._parts, len(kind.members)
        merge, line = parts.merges[kind.level], self._line(i, n)
        node, members = line[1], line[2:]
        before = run_state.replicas
        if not kind.all_workers:
            before = jax.tree.map(lambda x: x[members], before)
        group = Group((before,), stacked=n)
        packed = self._stats(kind, i, lambda of: jax.vmap(of)(before))
        new, (after,) = _merged(merge, state, group, packed, kind.op)

        def one(leaf: Any, value: Any, old: Any) -> Any:
            if value is old:
                return leaf
            value = jnp.asarray(value, leaf.dtype)
            return value if kind.all_workers else leaf.at[members].set(value)

        def write(now: tuple[Replica, States]) -> tuple[Replica, States]:
            replicas, states = now
            states = parts.with_state(states, kind.level, node, new, state)
            return jax.tree.map(one, replicas, after, before), states

        reads = not kind.all_workers  # else whole stacks replace the old ones
        replicas, states = self._write(
            write, (run_state.replicas, run_state.states), reads
        )
        return run_state._replace(replicas=replicas, states=states)


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
