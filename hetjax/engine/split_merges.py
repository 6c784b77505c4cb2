"""Merges in parts, as a cluster runs them: one of the driver, and those of the workers.

`hetjax.merge.merge_traffic` splits them. A replay runs the same programs on the same
kinds of device: one program in their place could round differently.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.engine.programs.merge_functions import fetch_fn, merge_fn
from hetjax.engine.programs.task_programs import Programs
from hetjax.engine.replica_store import ReplicaStore
from hetjax.machine import MergeAction, MergeOp, Topology
from hetjax.merge.member_program import MemberProgram
from hetjax.merge.merge_exchange import Exchange, Parcel, changed_leaves
from hetjax.merge.merge_traffic import exchange_of
from hetjax.merge.types import Merge
from hetjax.merge.worker_stats import WorkerStats
from hetjax.strategies.types import Strategy


class Exchanges:
    """How the merges of a strategy are split, each found once."""

    def __init__(self, strategy: Strategy, programs: Programs, topology: Topology):
        """None is found yet."""
        self._programs, self._topology = programs, topology
        self._merges = merges = programs.merges_of(strategy)
        self._model = programs.model_like
        self._local = strategy.local
        self._requires = (*merges[0].requires, *strategy.local.requires)
        self._replica = programs.replica_like(strategy.local, self._requires)

    def of(self, action: MergeAction) -> Exchange:
        """Return how this merge is split."""
        op = action.op
        merge = self._programs.part_of(self._merge_of(action.node), action.part)
        members = (*action.members, *action.partners)
        kinds = tuple(
            None if isinstance(member, int) else self._merge_of(member)
            for member in members
        )
        key = ("exchange", merge, op, kinds, self._local, self._requires)
        return self._programs.once(key, lambda: self._found(merge, op, kinds))

    def member_programs(self, actions: Iterable[MergeAction]) -> list[MemberProgram]:
        """Return the parts of these merges that workers run."""
        parcels = [parcel for action in actions for parcel in self.of(action).parcels]
        calls = [parcel.program for parcel in parcels if parcel is not None]
        return list(dict.fromkeys(call[0] for call in calls if call is not None))

    def _merge_of(self, node: str) -> Merge:
        return self._merges[self._topology.merge_level(node, len(self._merges))]

    def _found(
        self, merge: Merge, op: MergeOp, kinds: tuple[Merge | None, ...]
    ) -> Exchange:
        def merged(state: Any, replicas: tuple, stats: Any) -> tuple:
            if op == MergeOp.FETCH:
                return state, fetch_fn(merge)(state, replicas)
            return merge_fn(merge)(state, replicas, stats, op)

        def state_of(merge: Merge) -> Any:
            return jax.eval_shape(self._programs.state(merge), *self._model)

        replicas = [
            self._replica
            if kind is None
            else jax.eval_shape(self._programs.as_member(kind), state_of(kind))
            for kind in kinds
        ]
        shape = (len(WorkerStats._fields), len(kinds))
        stats = jax.ShapeDtypeStruct(shape, jnp.float32)
        local = [kind is not None for kind in kinds]
        return exchange_of(merged, state_of(merge), replicas, stats, local)


class SplitMergeStore(ReplicaStore):
    """A store whose merges run in the parts in which a cluster runs them."""

    def __init__(self, *args: Any):
        """As `ReplicaStore`."""
        super().__init__(*args)
        self._exchanges = Exchanges(self._strategy, self._programs, self._topology)

    def merge(self, action: MergeAction, stats: np.ndarray) -> None:
        """Run a merge, and the parts of its members on their devices."""
        exchange, node = self._exchanges.of(action), action.node
        self._reach(node)
        members = (*action.members, *action.partners)
        replicas = [jax.tree.leaves(self.member(m)) for m in members]
        read = [
            self._placement.to_nodes([own[i] for i in numbers])
            for own, numbers in zip(replicas, exchange.reads, strict=True)
        ]
        with self._compilations.of("merge"):
            self._nodes[node], sent, local = exchange.run(
                self._nodes[node], read, stats
            )
            for m, member in enumerate(members):
                if isinstance(member, str):
                    self._store_member(member, local.pop(0))
                elif (parcel := exchange.parcels[m]) is not None:
                    self._change(member, parcel, parcel.chosen(sent))

    def _change(self, worker: int, parcel: Parcel, sent: list[jax.Array]) -> None:
        """Change the replica of a worker by what it is sent."""
        leaves, structure = jax.tree.flatten(self._replicas[worker])

        def put(array: Any) -> jax.Array:
            return jnp.copy(self._placement.to_worker(worker, array))

        jitted = partial(jitted_once, self._programs)
        after = changed_leaves(
            leaves, parcel.changes, parcel.program, sent, put, jitted
        )
        self._replicas[worker] = jax.tree.unflatten(structure, after)


def jitted_once(programs: Programs, program: MemberProgram) -> Callable:
    """Return a member's program, jitted once."""
    return programs.once(("member program", program.key), program.jitted)
