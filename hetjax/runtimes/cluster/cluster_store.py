"""The store of a cluster's replicas, which stay with their actors.

The driver has at most the leaves of a replica that merges read: they are sent with a
round's report, or fetched for a merge, and dropped at the worker's next round. A worker
that is unreachable at a merge takes part in it as if it had not worked.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.replica_store import Model, ReplicaStore
from hetjax.engine.split_merges import Exchanges
from hetjax.machine import ROOT, MergeAction, MergeOp, Stamps, Topology
from hetjax.machine.merge_times import MergeTimes
from hetjax.merge.merge_exchange import Change, Exchange
from hetjax.runtimes.cluster.worker_group import (
    MAX_INLINE_BYTES,
    REPLICA,
    STEPS,
    WorkerGroup,
)
from hetjax.strategies.types import Strategy

# a worker that merged after each of its last 2 rounds sends the leaves that these
# merges read together with its next report
PREDICTING_ROUNDS = 2


class ArrivedReplica(NamedTuple):
    """A reference to the replica of a round that has arrived, which its actor has."""

    worker: int
    numbers: tuple[int, ...]  # indices of the leaves that come with the report
    leaves: Future  # these leaves


class ClusterStore(ReplicaStore):
    """The states of nodes, and the known leaves of the workers' replicas."""

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        placement: Placement,
        topology: Topology,
        *,
        group: WorkerGroup,
        on_unreachable: Callable[[int, str], None],
    ):
        """`on_unreachable(worker, why)` is called for a worker that does not answer."""
        super().__init__(strategy, job, placement, topology)
        self._group, self._on_unreachable = group, on_unreachable
        self._queue = REPLICA if self.shared else STEPS  # during rounds, or between
        self._begin_replica = job.programs.replica(strategy.local, self._requires)
        self._replica_like = jax.eval_shape(self._begin_replica, *self._initial)
        self._exchanges = Exchanges(strategy, job.programs, topology)
        leaves, structure = jax.tree.flatten(self._replica_like)
        self._leaf_bytes = [tree.num_bytes(leaf) for leaf in leaves]
        numbers = jax.tree.unflatten(structure, range(len(leaves)))
        model = numbers.params, numbers.model_state
        # the indices of the leaves of a replica that are its model
        self._model_leaves, self._model_structure = jax.tree.flatten(model)
        self._working: set[int] = set()
        self._changed: set[int] = set()  # working workers whose replicas merges changed
        # the known leaves by index, of each worker that has a replica
        self._known_leaves: dict[int, dict[int, Any]] = {}
        self._incoming: dict[int, ArrivedReplica] = {}  # leaves that come with a report
        # by worker, the leaves that merges read after each of its last rounds
        self._recent_reads: dict[int, tuple[set[int], ...]] = {}
        self._unreachable: dict[int, str] = {}  # why, until the worker's next replica
        self._root_payload: Any = None  # the root's model, until a merge changes it
        self._lost_at_snapshot: set[int] = set()  # workers unreachable at the last one
        self._merge_began = 0.0  # time stamp of the current merge's begin
        self._gathered: MergeAction | None = None  # the merge whose leaves were fetched

    # -- replicas --------------------------------------------------------------------

    def _post(self, worker: int, method: str, *args: Any) -> None:
        self._group.post(worker, method, *args, queue=self._queue)

    def _call(self, worker: int, method: str, *args: Any) -> Future:
        return self._group.call(worker, method, *args, queue=self._queue)

    def reset(self, worker: int) -> None:
        """Reset a worker's replica to the root's model, except for merge buffers."""
        self.discard(worker)
        self.begin(worker, "reset")

    def begin(self, worker: int, method: str = "begin") -> None:
        """Let a worker begin a replica from the root's current model."""
        model = jax.tree.leaves(self.model())
        if self._root_payload is None:
            self._root_payload = self._group.payload(model)
        self._post(worker, method, self._root_payload)
        self._group.count_sent(worker, model)
        self._known_leaves[worker] = dict(zip(self._model_leaves, model, strict=True))

    def discard(self, worker: int) -> None:
        """Discard a worker's replica: its next round begins from the root's model."""
        self._group.discard_deferred(worker)
        self._working.discard(worker)
        self._changed.discard(worker)
        self._known_leaves.pop(worker, None)
        self._incoming.pop(worker, None)
        self._recent_reads.pop(worker, None)
        self._unreachable.pop(worker, None)

    def check_out(self, worker: int) -> None:
        """Let a worker begin its round with the replica that it has."""
        self._working.add(worker)
        if self.shared:
            self._post(worker, "check_out")
        else:
            self._known_leaves[worker] = {}
        self._incoming.pop(worker, None)
        last = self._recent_reads.get(worker, ())
        # a worker that merged after each of its last rounds probably does so again
        often = len(last) == PREDICTING_ROUNDS and all(last)
        leaves = tuple(sorted(set().union(*last))) if often else ()
        large = sum(self._leaf_bytes[i] for i in leaves) > MAX_INLINE_BYTES
        self._group.report_leaves[worker] = leaves, large

    def check_in(self, worker: int, replica: Any) -> None:
        """Note that a worker's round has arrived."""
        self._working.discard(worker)
        changed = worker in self._changed
        self._changed.discard(worker)
        if self.shared:
            self._post(worker, "check_in")
        self._known_leaves[worker] = {}
        if not changed and replica.numbers:
            self._incoming[worker] = replica
        before = self._recent_reads.get(worker, ())
        self._recent_reads[worker] = (*before, set())[-PREDICTING_ROUNDS:]

    # -- merges ----------------------------------------------------------------------

    def gather(self, action: MergeAction) -> Sequence[int]:
        """Fetch the leaves that the merge reads; return the unreachable members."""
        self._merge_began, self._gathered = time.perf_counter(), action
        members = (*action.members, *action.partners)
        reads = self._exchanges.of(action).reads
        self._fetch(
            {m: r for m, r in zip(members, reads, strict=True) if isinstance(m, int)}
        )
        return [m for m in members if isinstance(m, int) and m in self._unreachable]

    def _fetch(self, wanted: Mapping[int, Sequence[int]]) -> None:
        """Make these leaves known by worker, or the worker unreachable."""
        asked: dict[int, tuple[Sequence[int], Future]] = {}
        for worker, numbers in wanted.items():
            if worker in self._recent_reads and numbers:
                self._recent_reads[worker][-1].update(numbers)
            known = self._known_leaves[worker]
            coming = self._incoming.get(worker)
            if coming is not None and set(numbers) <= {*known, *coming.numbers}:
                del self._incoming[worker]
                asked[worker] = coming.numbers, coming.leaves
                continue
            needed = [i for i in numbers if i not in known]
            if needed and worker not in self._unreachable:
                asked[worker] = needed, self._call(worker, "leaves", needed)
        answers = self._group.results({k: future for k, (_, future) in asked.items()})
        for worker, leaves in answers.items():
            if isinstance(leaves, BaseException):  # the actor is dead, or its device
                self._unreachable[worker] = str(leaves)
                self._on_unreachable(worker, str(leaves))
                continue
            self._group.count_received(worker, leaves)
            found = zip(asked[worker][0], leaves, strict=True)
            self._known_leaves[worker].update(found)

    def merge(self, action: MergeAction, stats: np.ndarray) -> MergeTimes:
        """Run a merge on the leaves that `gather` has fetched."""
        before = self._compilations.own_seconds
        if self._gathered is not action:
            self.gather(action)
        exchange, node = self._exchanges.of(action), action.node
        self._reach(node)
        members = (*action.members, *action.partners)
        read = [
            self._read(m, numbers)
            for m, numbers in zip(members, exchange.reads, strict=True)
        ]
        gathered = time.perf_counter()
        with self._compilations.of("merge"):
            self._nodes[node], sent, local = exchange.run(
                self._nodes[node], read, stats
            )
            for member in members:
                if isinstance(member, str):
                    self._store_member(member, local.pop(0))
        merged = self._wait_for((self._nodes[node], sent))
        if node == ROOT and action.op != MergeOp.FETCH:
            self._root_payload = None
        self._send(members, exchange, sent)
        stamps = Stamps(self._merge_began, gathered, merged, time.perf_counter())
        return MergeTimes(stamps, self._compilations.own_seconds - before)

    def _read(self, member: int | str, numbers: Sequence[int]) -> list[Any]:
        """The leaves that a merge reads; fresh ones for an unreachable member."""
        if isinstance(member, str):
            return jax.tree.leaves(self.member(member))
        if member not in self._unreachable:
            return [self._known_leaves[member][i] for i in numbers]
        fresh = jax.tree.leaves(self._begin_replica(*self.model()))
        return [fresh[i] for i in numbers]

    def _send(
        self, members: Sequence[int | str], exchange: Exchange, sent: list[jax.Array]
    ) -> None:
        """Send the changes to the members; the same arrays for several are put once."""
        payloads: dict[tuple[int, ...], Any] = {}  # by the numbers of their arrays
        send = self._post if self.shared else self._group.defer
        for m, worker in enumerate(members):
            parcel = exchange.parcels[m]
            # nothing of a node is sent
            if parcel is None or isinstance(worker, str) or worker in self._unreachable:
                continue
            for numbers in parcel.arrays:
                if numbers not in payloads:
                    payloads[numbers] = self._group.payload([sent[i] for i in numbers])
                self._group.count_sent(worker, [sent[i] for i in numbers])
            given = [payloads[numbers] for numbers in parcel.arrays]
            send(worker, "apply_changes", parcel.packed, *given)
            self._note_changes(worker, parcel.changes, parcel.chosen(sent))

    def _note_changes(
        self, worker: int, changes: Sequence[Change], sent: list[jax.Array]
    ) -> None:
        """Update a replica's known leaves to those after a merge."""
        if worker in self._working:
            self._changed.add(worker)
        self._incoming.pop(worker, None)
        before = self._known_leaves[worker]
        known = dict(before)
        for change in changes:
            known.pop(change.leaf, None)
            if change.sent is not None:
                known[change.leaf] = sent[change.sent]
            elif change.copy_of in before:
                known[change.leaf] = before[change.copy_of]
        self._known_leaves[worker] = known

    def member_model(self, member: int | str) -> Model:
        """Return a member's model, or the root's if the member is unreachable."""
        if isinstance(member, str):
            return super().member_model(member)
        self._fetch({member: self._model_leaves})
        if member in self._unreachable:
            return self.model()
        found = [self._known_leaves[member][i] for i in self._model_leaves]
        return jax.tree.unflatten(self._model_structure, found)

    def traffic(self) -> list[tuple[int, int]]:
        """Return (bytes received from, bytes sent to) each worker."""
        group = self._group
        return list(zip(group.bytes_received, group.bytes_sent, strict=True))

    # -- checkpoints -------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the leaves of all states, and of all reachable replicas."""
        self._lost_at_snapshot.clear()
        ready = [k for k in self._known_leaves if self.shared or k not in self._working]
        changed = [k for k in self._working if k in self._changed]
        replicas = self._all_leaves("leaves", ready)
        return {
            "root": Leaves(jax.tree.leaves(self._nodes[ROOT])),
            "nodes": {n: Leaves(jax.tree.leaves(s)) for n, s in self._nodes.items()},
            "replicas": replicas,
            "before": self._all_leaves("leaves_before", changed),
            "working": sorted(self._working & set(self._known_leaves)),
            "gone": sorted(self._lost_at_snapshot),
            "traffic": [self._group.bytes_received, self._group.bytes_sent],
        }

    def _all_leaves(self, method: str, workers: Sequence[int]) -> dict[int, Leaves]:
        """All leaves of the replicas of those of these workers that are reachable."""
        asked = {k: self._call(k, method) for k in workers}
        found = {}
        for worker, leaves in self._group.results(asked).items():
            if isinstance(leaves, BaseException):  # run and snapshot lose the worker
                self._on_unreachable(worker, str(leaves))
                self._lost_at_snapshot.add(worker)
            else:
                found[worker] = Leaves(leaves)
        return found

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self._load_nodes(saved["nodes"])
        self._group.bytes_received, self._group.bytes_sent = saved["traffic"]
        for worker in {*saved["replicas"], *saved["working"]}:
            replica = saved["replicas"].get(worker)
            before = saved["before"].get(worker)
            self._post(worker, "restore", *map(self._put_large, (replica, before)))
            self._known_leaves[worker] = {}
        for worker in saved["gone"]:  # its work since its last merge is lost
            self._known_leaves[worker] = {}
            self._unreachable[worker] = "it was unreachable when the run was saved"
            self._on_unreachable(worker, self._unreachable[worker])
        self._working = set(saved["working"])
        self._changed = set(saved["before"])

    def _put_large(self, leaves: Sequence[Any] | None) -> Any:
        return None if leaves is None else self._group.payload(leaves)

    def load_root(self, leaves: list[Any]) -> None:
        """Continue with the root alone: all replicas begin from its model."""
        super().load_root(leaves)
        self._root_payload = None

    def leaves_of(self, replica: Any) -> list[Any]:
        """Return all arrays of the replica of a round that has arrived."""
        worker = replica.worker
        return Leaves(self._group.result(worker, self._call(worker, "leaves_after")))

    def replica_of(self, worker: int, leaves: list[Any]) -> Any:
        """Restore the replica of a round that was saved with its outcome."""
        tree.filled(self._replica_like, leaves, f"the replica of worker {worker}")
        self._post(worker, "restore_after", self._put_large(leaves))
        return ArrivedReplica(worker, (), Future())
