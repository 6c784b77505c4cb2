"""What the program of a compiled run is made of, and the arrays that it changes."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.data.batching import Batch
from hetjax.engine.programs.task_programs import Programs
from hetjax.local import LocalUpdate
from hetjax.machine import ROOT, Topology
from hetjax.merge.types import Merge
from hetjax.replica import Replica, Requires
from hetjax.runtimes.compiled.stacks import set_tree_row, tree_row
from hetjax.tree import PyTree


class Parts(NamedTuple):
    """The parts of a strategy and a job that programs are made of."""

    programs: Programs
    local: LocalUpdate
    merges: tuple[Merge, ...]  # of the levels of nodes, from the lowest up
    requires: Requires  # buffers, of the lowest merge and of the local update
    num_workers: int
    num_nodes: tuple[int, ...]  # how many nodes have each of the merges
    vmapped: bool  # do the rounds of a superstep run side by side?
    changes: tuple[bool, ...]  # does a step change this leaf of a replica?
    # is this leaf copied when a round begins, since merges may change it meanwhile?
    copied: tuple[bool, ...]
    checks_finite: (
        bool  # is each round's replica checked for numbers that are not finite?
    )
    records_losses: bool  # are the losses of all examples kept, for the sampler?

    @property
    def shared(self) -> bool:
        """May merges change a replica during its round?"""
        return self.merges[0].updates_busy_workers

    def model(self, states: "States", like: PyTree) -> PyTree:
        """The root's model, in the dtypes of `like`: (params, model state)."""
        return tree.cast_like(self.merges[-1].model(self.state(states, -1, 0)), like)

    def new_replica(self, states: "States", like: PyTree) -> Replica:
        """A replica that begins from the root's model."""
        begin = self.programs.replica(self.local, self.requires)
        return begin(*self.model(states, like))

    def state(self, states: "States", level: int, node: Any) -> PyTree:
        """The state of a node, by the merge that it has and its place among those."""
        found = states[level]
        return found if self.num_nodes[level] == 1 else tree_row(found, node)

    def with_state(
        self, states: "States", level: int, node: Any, new: PyTree, old: PyTree
    ) -> "States":
        """The states with one that was `old`."""
        changed = list(states)
        changed[level] = (
            new
            if self.num_nodes[level] == 1
            else set_tree_row(states[level], node, new, old)
        )
        return tuple(changed)


States = tuple[PyTree, ...]  # of the nodes by merge; [nodes, ...] where several have it


def changed_leaves(
    programs: Programs, local: LocalUpdate, requires: Requires, batch: Batch
) -> tuple[bool, ...]:
    """Which leaves of a replica a step changes; the others come out as they are."""

    def traced() -> tuple[bool, ...]:
        begin = programs.replica(local, requires)
        model = jax.eval_shape(programs.task.init, jax.random.key(0))
        leaves, structure = jax.tree.flatten(jax.eval_shape(begin, *model))
        step = programs.step_fn(local, requires)

        def flat(leaves: list[Any], *rest: Any) -> list[Any]:
            return jax.tree.leaves(step(structure.unflatten(leaves), *rest)[0])

        key_data = jax.ShapeDtypeStruct((3,), jnp.uint32)
        rate = jax.ShapeDtypeStruct((), jnp.float32)
        jaxpr = jax.make_jaxpr(flat)(leaves, batch, rate, key_data).jaxpr
        pairs = zip(jaxpr.outvars, jaxpr.invars, strict=False)
        return tuple(out is not leaf for out, leaf in pairs)

    return programs.once(("changed leaves", local, requires), traced)


def copied_leaves(
    programs: Programs,
    merge: Merge,
    local: LocalUpdate,
    changes: tuple[bool, ...],
    *,
    vmapped: bool,
) -> tuple[bool, ...]:
    """Which leaves of a replica are copied when a round begins.

    None, unless merges may change a replica during its round. Then, if rounds run side
    by side, a round runs after such merges and needs all that it begins from. In turn,
    it runs at once, and its arrival needs what both may have changed (see
    `hetjax.engine.programs.task_programs.check_in`), or what it alone decides.
    """
    if not merge.updates_busy_workers:
        return (False,) * len(changes)
    if vmapped:
        return (True,) * len(changes)
    begin = programs.replica(local, (*merge.requires, *local.requires))
    model = jax.eval_shape(programs.task.init, jax.random.key(0))
    params, state, *own = jax.eval_shape(begin, *model)
    moved = [True] * len(jax.tree.leaves((params, state)))
    moved += [False] * len(jax.tree.leaves(own))
    return tuple(c == m for c, m in zip(changes, moved, strict=True))


class RunState(NamedTuple):
    """All replicas and states."""

    replicas: Replica  # [W, ...]
    # where merges may change a replica during its round: of the leaves that are copied,
    # those with which rounds began, and of those that steps change, what came of them
    checked_out: tuple[Any, ...]  # [W, ...] each
    finished: tuple[Any, ...]  # [W, ...] each
    states: States


class NodeIndices(NamedTuple):
    """Where the nodes of a topology are among those that have the same merge."""

    of: Mapping[str, tuple[int, int]]  # name -> (index of its merge, its place)
    num_nodes: tuple[int, ...]

    @classmethod
    def in_topology(cls, topology: Topology, merges: int) -> "NodeIndices":
        """The places of all nodes; the root is the first that has its merge."""
        of, counts = {}, [0] * merges
        for name in (ROOT, *sorted({*topology.nodes} - {ROOT})):
            level = topology.merge_level(name, merges)
            of[name] = level, counts[level]
            counts[level] += 1
        return cls(of, tuple(counts))


def initial_run_state(parts: Parts, params: PyTree, model_state: PyTree) -> RunState:
    """What a run begins with: every node and every replica has the first model."""
    begin = parts.programs.replica(parts.local, parts.requires)
    replicas = _repeated(begin(params, model_state), parts.num_workers)
    states = tuple(
        state if count == 1 else _repeated(state, count)
        for count, state in zip(
            parts.num_nodes,
            # a rule of one's own may begin with Python's numbers
            (
                jax.tree.map(jnp.asarray, merge.init(params, model_state))
                for merge in parts.merges
            ),
            strict=True,
        )
    )
    if not parts.shared:
        return RunState(replicas, (), (), states)
    leaves = jax.tree.leaves(replicas)

    def copies(of: tuple[bool, ...]) -> tuple[Any, ...]:
        every = zip(leaves, of, strict=True)
        return tuple(jnp.array(x, copy=True) for x, chosen in every if chosen)

    return RunState(replicas, copies(parts.copied), copies(parts.changes), states)


@partial(jax.jit, static_argnums=1)  # one program for all leaves
def _repeated(one: PyTree, n: int) -> PyTree:
    return jax.tree.map(
        lambda x: jnp.tile(jnp.asarray(x)[None], (n, *[1] * jnp.ndim(x))), one
    )
