"""The replicas of workers and states of nodes, and the programs that change them.

This is the store of the reference player. It knows no clock and no policy.
"""

import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.engine.job import Job
from hetjax.engine.launched_merge import LaunchedMerge
from hetjax.engine.placement import Placement, is_host
from hetjax.local import with_merge_buffers
from hetjax.machine import ROOT, MergeAction, MergeOp, Stamps, Topology
from hetjax.machine.merge_times import MergeTimes
from hetjax.merge.types import Merge
from hetjax.replica import Replica
from hetjax.strategies.types import Strategy

Model = tuple[Any, Any]  # params, model_state


class ReplicaStore:
    """Replicas by worker and states by node, each made when it is first needed."""

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        placement: Placement,
        topology: Topology,
    ):
        """Initialize the model with the job's seed.

        If the placement is timed, each merge is awaited and its parts are timestamped.
        """
        self._placement, self._topology = placement, topology
        self._strategy, self._programs = strategy, job.programs
        self._compilations = job.compilations
        self._merges = job.programs.merges_of(strategy)
        self._requires = (*self._merges[0].requires, *strategy.local.requires)
        self._model = job.programs.model(self._merges[-1])
        with job.compilations.of("init"):
            initial = job.programs.init(jax.random.key(job.seed))
            self._initial = placement.to_nodes(initial)
            self._start = self._initial  # from which nodes begin
            self._nodes = {ROOT: self._begin_node(self._merges[-1])}
        # whether merges may change a replica during its round: steps must not donate it
        self.shared = self._merges[0].updates_busy_workers
        self._replicas: dict[int, Replica] = {}
        self._checked_out: dict[int, Replica | None] = {}  # by worker in a round
        # launches of merges, by what decides which program is compiled
        self._launched: dict[Hashable, Callable] = {}
        # a merge sends the parameters and model state of a replica
        self.num_bytes = tree.num_bytes(self._initial)

    def model(self) -> Model:
        """Return the root's current model, in the dtypes of the initial model."""
        return self._model(self._nodes[ROOT], *self._initial)

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        return counters(self._merges[-1], self._nodes[ROOT])

    def merge_of(self, node: str) -> Merge:
        """Return the merge of a node's level; the root has the last one."""
        return self._merges[self._topology.merge_level(node, len(self._merges))]

    def begin(self, worker: int) -> None:
        """Make a worker's replica, from the root's current model."""
        with self._compilations.of("init"):
            begin = self._programs.replica(self._strategy.local, self._requires)
            replica = begin(*self.model())
            self._replicas[worker] = self._placement.to_worker(worker, replica)

    def discard(self, worker: int) -> None:
        """Discard a worker's replica: its next round begins from the root's model."""
        self._replicas.pop(worker, None)
        self._checked_out.pop(worker, None)

    def reset(self, worker: int) -> None:
        """Make a worker's replica anew, except for the merge's buffers."""
        before = self._replicas[worker]
        self.begin(worker)
        replica = self._replicas[worker]
        self._replicas[worker] = with_merge_buffers(replica, before, self._requires)

    def check_out(self, worker: int) -> Replica:
        """Return the replica with which a worker begins its round."""
        replica = self._replicas[worker]
        if not self.shared:
            del self._replicas[worker]  # the steps donate its buffers
        self._checked_out[worker] = replica if self.shared else None
        return replica

    def check_in(self, worker: int, replica: Replica) -> None:
        """Store a worker's replica after its round, with the changes by merges."""
        before = self._checked_out.pop(worker)
        now = self._replicas.get(worker)
        # if no merge changed it, there is nothing to add
        moved = before is not None and now is not None and now is not before
        if moved:
            replica = self._programs.check_in(now, before, replica)
        self._replicas[worker] = replica

    # -- checkpoints ---------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the leaves of all states and replicas."""
        moved = {
            k: before is not None and before is not self._replicas.get(k)
            for k, before in self._checked_out.items()
        }
        return {
            "root": Leaves(jax.tree.leaves(self._nodes[ROOT])),
            "nodes": {n: Leaves(jax.tree.leaves(s)) for n, s in self._nodes.items()},
            "replicas": {k: self.leaves_of(r) for k, r in self._replicas.items()},
            # those with which workers began, if a merge has changed them since
            "before": {
                k: self.leaves_of(self._checked_out[k]) if moved[k] else None
                for k in moved
            },
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self._load_nodes(saved["nodes"])
        self._replicas = {
            k: self.replica_of(k, x) for k, x in saved["replicas"].items()
        }
        self._checked_out = {
            k: self._replicas.get(k) if x is None else self.replica_of(k, x)
            for k, x in saved["before"].items()
        }
        if not self.shared:
            self._checked_out = dict.fromkeys(self._checked_out)

    def _load_nodes(self, saved: dict[str, list[Any]]) -> None:
        begin = self._programs.state
        for node, leaves in saved.items():
            like = jax.eval_shape(begin(self.merge_of(node)), *self._initial)
            self._nodes[node] = self._placement.to_nodes(
                self._restored(like, leaves, node)
            )

    def load_root(self, leaves: list[Any]) -> None:
        """Continue with the root only: everything else begins from its model."""
        like = jax.eval_shape(self._programs.state(self._merges[-1]), *self._initial)
        root = self._restored(like, leaves, "the state of the root")
        self._nodes[ROOT] = self._placement.to_nodes(root)
        self._start = self.model()

    def leaves_of(self, replica: Replica | None) -> list[Any]:
        """Return a replica's arrays, for `replica_of`."""
        return Leaves(jax.tree.leaves(replica))

    def replica_of(self, worker: int, leaves: list[Any]) -> Replica:
        """Return a worker's replica, on its device, from the arrays of a saved one."""
        begin = self._programs.replica(self._strategy.local, self._requires)
        like = jax.eval_shape(begin, *self._initial)
        found = self._restored(like, leaves, f"the replica of worker {worker}")
        return self._placement.to_worker(worker, found)

    def model_of(self, leaves: list[Any]) -> Model:
        """Return a model, on the device of the nodes, from a saved one's arrays."""
        found = self._restored(self._initial, leaves, "the model")
        return self._placement.to_nodes(found)

    def _restored(self, like: Any, leaves: list[Any], what: str) -> Any:
        """Return a tree like `like`, in new buffers; a ValueError if it differs."""
        return self._programs.copies(tree.filled(like, leaves, what))

    # -- merges --------------------------------------------------------------------

    def merge(
        self, action: MergeAction, stats: np.ndarray
    ) -> MergeTimes | LaunchedMerge | None:
        """Launch a merge or a fetch; return its times if the placement is timed.

        `stats` are packed, as `Ledger.take_stats` returns them. If nothing moves
        between devices and nothing had to be compiled, the merge may still run. Stamps
        are those of `time.perf_counter`.
        """
        node, members = action.node, action.members + action.partners
        self._reach(node)
        kind = node, action.part, action.op, len(members)
        start, before = time.perf_counter(), self._compilations.own_seconds
        away = self._placement.away(members)
        replicas = tuple(map(self._gather, members))
        gathered = self._wait_for(replicas) if away else start
        if kind in self._launched:
            replicas, done = self._launched[kind](node, replicas, stats)
        else:  # it is compiled
            self._launched[kind] = launch = partial(self._launch, *self._merge(action))
            with self._compilations.of("merge"):
                replicas, done = launch(node, replicas, stats)
        for member, replica in zip(members, replicas, strict=True):
            self._store_member(member, replica)
        if not self._placement.timed:
            return None
        compiling = self._compilations.own_seconds - before
        if not (away or compiling):
            return LaunchedMerge(start, done)
        merged = finish = self._wait_for(done)
        if away:
            finish = self._wait_for([self._replicas[m] for m in away])
        return MergeTimes(Stamps(start, gathered, merged, finish), compiling)

    def _merge(self, action: MergeAction) -> tuple[Callable, MergeOp]:
        """Return the program of a merge or of a fetch."""
        merge = self._programs.part_of(self.merge_of(action.node), action.part)
        fetches = action.op == MergeOp.FETCH
        make = self._programs.fetch if fetches else self._programs.merge
        return make(merge), action.op

    def _launch(
        self,
        program: Callable,
        op: MergeOp,
        node: str,
        replicas: tuple[Replica, ...],
        stats: np.ndarray,
    ) -> tuple[tuple[Replica, ...], jax.Array]:
        """Launch a merge's program; return the replicas, and what tells its end."""
        state = self._nodes[node]
        if not is_host(self._placement.nodes):
            stats = jax.device_put(stats, self._placement.nodes)
        if op == MergeOp.FETCH:
            return program(state, replicas)
        self._nodes[node], replicas, done = program(state, replicas, stats, op)
        return replicas, done

    def member_model(self, member: int | str) -> Model:
        """Return a member's model, on the device of the nodes."""
        replica = self._gather(member)
        return replica.params, replica.model_state

    def member(self, member: int | str) -> Replica:
        """Return a worker's replica, or a node's model as a replica for its parent."""
        if isinstance(member, int):
            if member not in self._replicas:  # its steps own its buffers
                raise busy_partner(member)
            return self._replicas[member]
        return self._programs.as_member(self.merge_of(member))(self._nodes[member])

    def _wait_for(self, trees: Any) -> float:
        """Return the time; if the placement is timed, first wait for the trees."""
        if self._placement.timed:
            jax.block_until_ready(trees)
        return time.perf_counter()

    def _begin_node(self, merge: Merge) -> Any:
        """Return the state of a node that starts from the run's starting model."""
        return self._placement.to_nodes(self._programs.state(merge)(*self._start))

    def _reach(self, node: str) -> None:
        """Begin a node's state at its first merge."""
        if node not in self._nodes:
            self._nodes[node] = self._begin_node(self.merge_of(node))

    def _gather(self, member: int | str) -> Replica:
        """Return a member's replica (see `member`), on the device of the nodes."""
        found = self.member(member)
        at_nodes = self._placement.is_at_nodes(member)
        return found if at_nodes else self._placement.to_nodes(found)

    def _store_member(self, member: int | str, replica: Replica) -> None:
        if isinstance(member, int):
            at_nodes = self._placement.is_at_nodes(member)
            self._replicas[member] = (
                replica if at_nodes else self._placement.to_worker(member, replica)
            )
        else:
            from_parent = self._programs.from_parent(self.merge_of(member))
            self._nodes[member] = from_parent(self._nodes[member], replica)


def busy_partner(worker: int) -> ValueError:
    """Return the error of a merge that would change a replica during its round."""
    return ValueError(
        f"worker {worker} is a partner in a merge during its round, which this merge "
        "does not support: use one that declares UPDATES_BUSY_WORKERS, such as "
        "merge.gossip()"
    )


def counters(merge: Merge, state: Any) -> dict[str, float]:
    """Return the counters of a merge's state; {} if it has none."""
    return {k: float(v) for k, v in merge.report(state).items()} if merge.report else {}
