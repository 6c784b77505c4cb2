"""The parts of a compiled run's programs, and the arrays that they update."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax import tree
from hetjax.data.batching import Batch, make_batch
from hetjax.engine.job import Job
from hetjax.engine.programs.task_programs import Programs
from hetjax.local import LocalUpdate
from hetjax.machine import ROOT, WorkerInfo
from hetjax.merge.types import Merge
from hetjax.replica import Replica, Requires
from hetjax.runtimes.compiled.stacks import set_tree_row, tree_row
from hetjax.strategies.types import Strategy
from hetjax.tree import PyTree


class Parts(NamedTuple):
    """The parts of a strategy and a job that programs are built from."""

    programs: Programs
    local: LocalUpdate
    merges: tuple[Merge, ...]  # by level of the tree of nodes, lowest first
    requires: Requires  # buffers of the lowest merge and of the local update
    num_workers: int
    num_nodes: tuple[int, ...]  # the number of nodes with each of the merges
    vmapped: bool  # whether the rounds of a superstep run side by side
    changes: tuple[bool, ...]  # whether a step changes this leaf of a replica
    # whether this leaf is copied when a round begins, as merges may change it meanwhile
    copied: tuple[bool, ...]
    checks_finite: bool  # whether replicas are checked for NaN and infinity
    records_losses: bool  # whether to return all losses, for the sampler

    @property
    def shared(self) -> bool:
        """Whether merges may change a replica during its round."""
        return self.merges[0].updates_busy_workers

    def changing(self, leaves: list[Any]) -> list[Any]:
        """Return the leaves of a replica that steps change."""
        return [x for x, moves in zip(leaves, self.changes, strict=True) if moves]

    def merged(self, before: list[Any], changed: list[Any]) -> list[Any]:
        """Return all leaves: the changed ones, and the others from `before`."""
        new = iter(changed)
        pairs = zip(before, self.changes, strict=True)
        return [next(new) if moves else x for x, moves in pairs]

    def with_changed(self, run_state: "RunState", changed: list[Any]) -> "RunState":
        """Return the run state with the stacked leaves that steps change replaced."""
        leaves, structure = jax.tree.flatten(run_state.replicas)
        replicas = structure.unflatten(self.merged(leaves, changed))
        return run_state._replace(replicas=replicas)

    def model(self, states: "States", like: PyTree) -> PyTree:
        """Return the root's (params, model state), in the dtypes of `like`."""
        return tree.cast_like(self.merges[-1].model(self.state(states, -1, 0)), like)

    def new_replica(self, states: "States", like: PyTree) -> Replica:
        """Return a new replica, initialized from the root's model."""
        begin = self.programs.replica(self.local, self.requires)
        return begin(*self.model(states, like))

    def state(self, states: "States", level: int, node: Any) -> PyTree:
        """Return the state of a node, given by its level and its index there."""
        found = states[level]
        return found if self.num_nodes[level] == 1 else tree_row(found, node)

    def with_state(
        self, states: "States", level: int, node: Any, new: PyTree, old: PyTree
    ) -> "States":
        """Return the states with a node's state replaced; `old` is the previous one."""
        changed = list(states)
        changed[level] = (
            new
            if self.num_nodes[level] == 1
            else set_tree_row(states[level], node, new, old)
        )
        return tuple(changed)


States = tuple[PyTree, ...]  # of nodes, by level; [nodes, ...] if there are several


def parts_of(
    job: Job,
    strategy: Strategy,
    num_workers: int,
    num_nodes: tuple[int, ...],
    *,
    vmapped: bool,
    programs: Programs | None = None,
) -> Parts:
    """Return the parts of a strategy and a job, by default with the job's programs."""
    programs = programs or job.programs
    local, merges = strategy.local, programs.merges_of(strategy)
    requires = (*merges[0].requires, *local.requires)

    def changed() -> tuple[bool, ...]:
        # of the largest size, as a model may require divisible batches
        some = np.zeros(job.buckets[-1].size, np.int64)
        batch = make_batch(job.train, some, job.buckets)
        return _changed_leaves(programs, local, requires, batch)

    changes = programs.once(("changed leaves", local, requires), changed)
    parts = Parts(
        programs,
        local,
        merges,
        requires,
        num_workers,
        num_nodes,
        vmapped,
        changes,
        (False,) * len(changes),
        checks_finite=job.on_nan == "reset",
        records_losses=strategy.sampler.observe is not None,
    )
    return parts._replace(copied=_copied_leaves(parts)) if parts.shared else parts


def _changed_leaves(
    programs: Programs, local: LocalUpdate, requires: Requires, batch: Batch
) -> tuple[bool, ...]:
    """Return which leaves of a replica a step changes; others are passed through."""
    leaves, structure = jax.tree.flatten(programs.replica_like(local, requires))
    step = programs.step_fn(local, requires)

    def flat(leaves: list[Any], *rest: Any) -> list[Any]:
        return jax.tree.leaves(step(structure.unflatten(leaves), *rest)[0])

    key_data = jax.ShapeDtypeStruct((3,), jnp.uint32)
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    jaxpr = jax.make_jaxpr(flat)(leaves, batch, rate, key_data).jaxpr
    pairs = zip(jaxpr.outvars, jaxpr.invars, strict=False)
    return tuple(out is not leaf for out, leaf in pairs)


def _copied_leaves(parts: Parts) -> tuple[bool, ...]:
    """Return which leaves are copied when a round begins, which merges may change.

    If rounds run side by side, a round may run after such merges and needs copies of
    all leaves. If they run in turn, a round runs at once; its check-in needs copies of
    the leaves that both the round and merges may change (see
    `hetjax.engine.programs.merge_functions.check_in`), and of buffers that steps leave
    unchanged.
    """
    if parts.vmapped:
        return (True,) * len(parts.changes)
    params, state, *own = parts.programs.replica_like(parts.local, parts.requires)
    moved = [True] * len(jax.tree.leaves((params, state)))
    moved += [False] * len(jax.tree.leaves(own))
    return tuple(c == m for c, m in zip(parts.changes, moved, strict=True))


class RunState(NamedTuple):
    """All replicas of workers and states of nodes, on the device."""

    replicas: Replica  # [W, ...]
    # if merges may change a replica during its round: the leaves in `Parts.copied` when
    # each round began, and the leaves in `Parts.changes` after its steps
    checked_out: tuple[Any, ...]  # [W, ...] each
    finished: tuple[Any, ...]  # [W, ...] each
    states: States


class NodeIndices(NamedTuple):
    """The level and index of each node of a strategy's topology."""

    of: Mapping[str, tuple[int, int]]  # name -> (level, index in it)
    num_nodes: tuple[int, ...]

    @classmethod
    def of_strategy(
        cls, strategy: Strategy, workers: tuple[WorkerInfo, ...]
    ) -> "NodeIndices":
        """Index all nodes; the root is the first node of its level."""
        topology, merges = strategy.policy.topology(workers), len(strategy.merges)
        of, counts = {}, [0] * merges
        for name in (ROOT, *sorted({*topology.nodes} - {ROOT})):
            level = topology.merge_level(name, merges)
            of[name] = level, counts[level]
            counts[level] += 1
        return cls(of, tuple(counts))


def initial_run_state(parts: Parts, params: PyTree, model_state: PyTree) -> RunState:
    """Return the initial state of a run: all nodes and replicas have the same model."""
    begin = parts.programs.replica(parts.local, parts.requires)
    replicas = _repeated(begin(params, model_state), parts.num_workers)
    states = tuple(
        state if count == 1 else _repeated(state, count)
        for count, state in zip(
            parts.num_nodes,
            # the state of a custom merge may have Python numbers
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
