"""The replicas of a cluster: they stay with their members; what merges need crosses.

Of a replica the driver holds at most the leaves that merges read, from the report of a
round, or fetched for a merge, until the worker's next round. A member that cannot be
reached at a merge is absent from it, as if it had not worked: a merge does not wait for
what is gone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.programs.task_programs import fetch_fn, merge_fn
from hetjax.engine.reference_player import ReferencePlayer
from hetjax.engine.replica_store import Model, ReplicaStore
from hetjax.engine.tape import GatherReplicas
from hetjax.machine import ROOT, MergeAction, MergeOp, Stamps, Topology
from hetjax.merge.merge_traffic import Change, Exchange, exchange_of
from hetjax.merge.types import Merge
from hetjax.merge.worker_stats import WorkerStats
from hetjax.runtimes.cluster.worker_group import WorkerGroup, queue_of
from hetjax.strategies.types import Strategy

ROUNDS = 2  # of a worker that ended in merges: its next one sends what these read


class Arrived(NamedTuple):
    """The replica of a round that has arrived: it is with its member."""

    worker: int
    numbers: tuple[int, ...]  # of the leaves that come with the report
    leaves: Future  # of them


class ClusterStore(ReplicaStore):
    """States of nodes, and what is known of the replicas of members."""

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        placement: Placement,
        topology: Topology,
        *,
        crew: WorkerGroup,
        lose: Callable[[int, str], None],
    ):
        """`lose(worker, why)` tells that a worker cannot be reached."""
        super().__init__(strategy, job, placement, topology)
        self._crew, self._lose = crew, lose
        self._queue = queue_of(self.shared)
        self._begin_replica = job.programs.replica(strategy.local, self._requires)
        self._replica_like = jax.eval_shape(self._begin_replica, *self._initial)
        leaves, structure = jax.tree.flatten(self._replica_like)
        numbers = jax.tree.unflatten(structure, range(len(leaves)))
        model = numbers.params, numbers.model_state
        # the numbers of the leaves of a replica that are its model
        self._of_model, self._model_structure = jax.tree.flatten(model)
        self._working: set[int] = set()
        self._moved: set[int] = set()  # working workers whose replicas merges changed
        # of each worker that has a replica, the known leaves by number
        self._known: dict[int, dict[int, Any]] = {}
        self._coming: dict[int, Arrived] = {}  # leaves that come with a report
        # by worker, the leaves that merges read after each of its last rounds
        self._reads: dict[int, tuple[set[int], ...]] = {}
        self._missing: dict[int, str] = {}  # members that the next merge does without
        self._parcel: Any = None  # of the root's model, until a merge changes it
        self._gone_at_cut: set[int] = set()  # that did not answer at the last cut
        self._since = 0.0  # stamp of the begin of the merge in flight
        self._gathered: MergeAction | None = None  # whose leaves were fetched

    # -- replicas --------------------------------------------------------------------

    def begin(self, worker: int) -> None:
        """Let a worker begin a replica, from the root's current model."""
        self._begin(worker, "begin")

    def reset(self, worker: int) -> None:
        """Let a worker begin its replica again, but for the merge's buffers."""
        self.discard(worker)
        self._begin(worker, "reset")

    def _begin(self, worker: int, method: str) -> None:
        model = jax.tree.leaves(self.model())
        if self._parcel is None:
            self._parcel = self._crew.parcel(model)
        self._crew.tell(worker, method, self._parcel, queue=self._queue)
        self._crew.count_sent(worker, model)
        self._known[worker] = dict(zip(self._of_model, model, strict=True))

    def discard(self, worker: int) -> None:
        """A worker's next round begins from the root's model."""
        self._working.discard(worker)
        self._moved.discard(worker)
        self._known.pop(worker, None)
        self._coming.pop(worker, None)
        self._reads.pop(worker, None)
        self._missing.pop(worker, None)

    def check_out(self, worker: int) -> None:
        """A worker begins its round, with the replica that it has."""
        self._working.add(worker)
        if self.shared:
            self._crew.tell(worker, "check_out", queue=self._queue)
        else:
            self._known[worker] = {}
        self._coming.pop(worker, None)
        last = self._reads.get(worker, ())
        # it merged after each of its last rounds, so that it will after this one
        often = len(last) == ROUNDS and all(last)
        self._crew.wanted[worker] = tuple(sorted(set().union(*last))) if often else ()

    def check_in(self, worker: int, replica: Any) -> None:
        """A worker's round has arrived; `replica` is an `Arrived`."""
        self._working.discard(worker)
        moved = worker in self._moved
        self._moved.discard(worker)
        if self.shared:
            self._crew.tell(worker, "check_in", queue=self._queue)
        self._known[worker] = {}
        if not moved and replica.numbers:
            self._coming[worker] = replica
        before = self._reads.get(worker, ())
        self._reads[worker] = (*before, set())[-ROUNDS:]

    # -- merges ----------------------------------------------------------------------

    def gather(self, action: MergeAction) -> Sequence[int]:
        """Fetch what the merge reads; return the members that cannot be reached."""
        self._since, self._gathered = time.perf_counter(), action
        members = (*action.members, *action.partners)
        reads = self._exchange(action).reads
        self._fetch(
            {m: r for m, r in zip(members, reads, strict=True) if isinstance(m, int)}
        )
        return [m for m in members if isinstance(m, int) and m in self._missing]

    def _fetch(self, wanted: Mapping[int, Sequence[int]]) -> None:
        """Make these leaves known, by worker; a worker that is gone is missing then."""
        asked: dict[int, tuple[Sequence[int], Future]] = {}
        for worker, numbers in wanted.items():
            if worker in self._reads and numbers:
                self._reads[worker][-1].update(numbers)
            known = self._known[worker]
            coming = self._coming.get(worker)
            if coming is not None and set(numbers) <= {*known, *coming.numbers}:
                del self._coming[worker]
                asked[worker] = coming.numbers, coming.leaves
                continue
            needed = [i for i in numbers if i not in known]
            if needed and worker not in self._missing:
                asked[worker] = (
                    needed,
                    self._crew.call(worker, "leaves", needed, queue=self._queue),
                )
        answers = self._crew.answers({k: future for k, (_, future) in asked.items()})
        for worker, leaves in answers.items():
            if isinstance(leaves, BaseException):  # it is gone, or its device is
                self._missing[worker] = str(leaves)
                self._lose(worker, str(leaves))
                continue
            self._crew.count_received(worker, leaves)
            self._known[worker].update(zip(asked[worker][0], leaves, strict=True))

    def merge(self, action: MergeAction, stats: np.ndarray) -> Stamps:
        """Carry out a merge, of what `gather` has fetched."""
        if self._gathered is not action:
            self.gather(action)
        exchange, node = self._exchange(action), action.node
        if node not in self._nodes:
            self._nodes[node] = self._begin_node(self.merge_of(node))
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
                    self._take_back(member, local.pop(0))
        merged = self._wait_for((self._nodes[node], sent))
        if node == ROOT and action.op != MergeOp.FETCH:
            self._parcel = None
        self._send(members, exchange, sent)
        return Stamps(self._since, gathered, merged, time.perf_counter())

    def _read(self, member: int | str, numbers: Sequence[int]) -> list[Any]:
        """What a merge reads of a member; of one that is missing, as if it began."""
        if isinstance(member, str):
            return jax.tree.leaves(self.member(member))
        if member not in self._missing:
            return [self._known[member][i] for i in numbers]
        fresh = jax.tree.leaves(self._begin_replica(*self.model()))
        return [fresh[i] for i in numbers]

    def _send(
        self, members: Sequence[int | str], exchange: Exchange, sent: list[jax.Array]
    ) -> None:
        """Give the members what the merge changed; what several get is put once."""
        here = {
            m: changes
            for m, changes in zip(members, exchange.changes, strict=True)
            if isinstance(m, int) and changes and m not in self._missing
        }
        receivers: dict[int, list[int]] = {}  # by number of an array
        for worker, changes in here.items():
            for number in {c.sent for c in changes if c.sent is not None}:
                receivers.setdefault(number, []).append(worker)
        together: dict[tuple[int, ...], list[int]] = {}  # numbers by their receivers
        for number in sorted(receivers):
            together.setdefault(tuple(receivers[number]), []).append(number)
        parcels = {
            several: self._crew.parcel([sent[number] for number in numbers])
            for several, numbers in together.items()
        }
        for worker, changes in here.items():
            own = [several for several in together if worker in several]
            order = [number for several in own for number in together[several]]
            place = {number: k for k, number in enumerate(order)}
            told = [
                c if c.sent is None else c._replace(sent=place[c.sent]) for c in changes
            ]
            self._crew.tell(
                worker, "change", told, *(parcels[s] for s in own), queue=self._queue
            )
            self._crew.count_sent(worker, [sent[number] for number in order])
            self._note_changes(worker, changes, sent)

    def _note_changes(
        self, worker: int, changes: Sequence[Change], sent: list[jax.Array]
    ) -> None:
        """Know a replica's leaves as they are after a merge."""
        if worker in self._working:
            self._moved.add(worker)
        self._coming.pop(worker, None)
        before = self._known[worker]
        known = dict(before)
        for leaf, number, own, _ in changes:
            known.pop(leaf, None)
            if number is not None:
                known[leaf] = sent[number]
            elif own in before:
                known[leaf] = before[own]
        self._known[worker] = known

    def member_model(self, member: int | str) -> Model:
        """Return a member's model; that of one which is missing is the root's."""
        if isinstance(member, str):
            return super().member_model(member)
        self._fetch({member: self._of_model})
        if member in self._missing:
            return self.model()
        found = [self._known[member][i] for i in self._of_model]
        return jax.tree.unflatten(self._model_structure, found)

    def _exchange(self, action: MergeAction) -> Exchange:
        """What crosses in a merge of this kind, and its program."""
        merge, members = self.merge_of(action.node), (*action.members, *action.partners)
        kinds = tuple(self.merge_of(m) if isinstance(m, str) else None for m in members)
        key = (
            "exchange",
            merge,
            action.op,
            kinds,
            self._strategy.local,
            self._requires,
        )
        return self._programs.once(key, lambda: self._find(merge, action.op, kinds))

    def _find(
        self, merge: Merge, op: MergeOp, kinds: Sequence[Merge | None]
    ) -> Exchange:
        fetch, apply = fetch_fn(merge), merge_fn(merge)

        def merged(state: Any, replicas: tuple, stats: Any) -> tuple:
            if op == MergeOp.FETCH:
                return state, fetch(state, replicas)
            return apply(state, replicas, stats, op)

        def state_of(merge: Merge) -> Any:
            return jax.eval_shape(self._programs.state(merge), *self._initial)

        replicas = [
            self._replica_like
            if kind is None
            else jax.eval_shape(self._programs.as_member(kind), state_of(kind))
            for kind in kinds
        ]
        stats = jax.ShapeDtypeStruct(
            (len(WorkerStats._fields), len(kinds)), jnp.float32
        )
        local = [kind is not None for kind in kinds]
        return exchange_of(merged, state_of(merge), replicas, stats, local)

    def traffic(self) -> list[tuple[int, int]]:
        """Bytes that came from each worker, and went to it."""
        return list(zip(self._crew.received, self._crew.sent, strict=True))

    # -- saved and taken up again ------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the leaves of all states, and of all replicas that can be reached."""
        self._gone_at_cut.clear()
        at_hand = [k for k in self._known if self.shared or k not in self._working]
        moved = [k for k in self._working if k in self._moved]
        replicas = self._all_leaves("leaves", at_hand)
        before = self._all_leaves("leaves_before", moved)
        return {
            "root": Leaves(jax.tree.leaves(self._nodes[ROOT])),
            "nodes": {n: Leaves(jax.tree.leaves(s)) for n, s in self._nodes.items()},
            "replicas": replicas,
            "before": before,
            "working": sorted(self._working & set(self._known)),
            "gone": sorted(self._gone_at_cut),
            "traffic": [self._crew.received, self._crew.sent],
        }

    def _all_leaves(self, method: str, workers: Sequence[int]) -> dict[int, Leaves]:
        """All leaves of these workers' replicas, but of those that are gone."""
        asked = {k: self._crew.call(k, method, queue=self._queue) for k in workers}
        found = {}
        for worker, leaves in self._crew.answers(asked).items():
            if isinstance(leaves, BaseException):  # the run loses it, as does the cut
                self._lose(worker, str(leaves))
                self._gone_at_cut.add(worker)
            else:
                found[worker] = Leaves(leaves)
        return found

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self._load_nodes(saved["nodes"])
        self._crew.received, self._crew.sent = saved["traffic"]
        for worker in {*saved["replicas"], *saved["working"]}:
            replica = saved["replicas"].get(worker)
            before = saved["before"].get(worker)
            self._crew.tell(worker, "take_up", replica, before, queue=self._queue)
            self._known[worker] = {}
        for worker in saved["gone"]:  # what it had not merged is not there
            self._known[worker] = {}
            self._missing[worker] = "it could not be reached when the run was kept"
            self._lose(worker, self._missing[worker])
        self._working = set(saved["working"])
        self._moved = set(saved["before"])

    def load_root(self, leaves: list[Any]) -> None:
        """Continue with the root alone: all else begins from its model."""
        super().load_root(leaves)
        self._parcel = None

    def leaves_of(self, replica: Any) -> list[Any]:
        """Return all arrays of the replica of a round that has arrived."""
        queue = self._queue
        found = self._crew.call(replica.worker, "leaves_after", queue=queue)
        return Leaves(self._crew.answer(replica.worker, found))

    def replica_of(self, worker: int, leaves: list[Any]) -> Any:
        """Give a worker the replica of a round that was saved with its outcome."""
        tree.filled(self._replica_like, leaves, f"the replica of worker {worker}")
        self._crew.tell(worker, "take_up_after", leaves, queue=self._queue)
        return Arrived(worker, (), Future())


class ClusterPlayer(ReferencePlayer):
    """Plays a tape on a cluster: members may be out of reach, bytes are counted."""

    store: ClusterStore

    def open(self) -> None:
        """Make the first model."""
        super().open()
        traffic = self.store.traffic
        self.traits = self.traits._replace(traffic=traffic, may_be_unreachable=True)
        self.plays = {
            **self.plays,
            GatherReplicas: lambda e: self.store.gather(e.action),
        }
