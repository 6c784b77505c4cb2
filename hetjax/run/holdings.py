"""What workers and nodes hold of the model, and the programs that change it.

The device side of the loop: no clock and no policy here, only replicas, states and the
compiled functions between them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax import tree
from hetjax.local.slots import OWN
from hetjax.machine import ROOT, MergeOrder, Stamps
from hetjax.merge.types import Merge
from hetjax.replica import Replica
from hetjax.run.compilations import Compilations
from hetjax.run.executor import Device
from hetjax.run.programs import Programs
from hetjax.strategies.types import Strategy

Model = tuple[Any, Any]  # params, model_state


class Places(NamedTuple):
    """The devices where things are; None: wherever JAX puts them, without a move."""

    workers: Sequence[Device | None]  # each one's replica
    nodes: Device | None = None  # the nodes' states: merges run here


class Holdings:
    """Replicas by worker and states by node; both are made when they are needed."""

    def __init__(
        self,
        strategy: Strategy,
        programs: Programs,
        compilations: Compilations,
        *,
        seed: int,
        on_fetch: Callable[[int], None],
        places: Places | None = None,
    ):
        """The initial model of a seed; `on_fetch` is told who gets a first copy.

        With `places` merges are waited for, and their parts timed.
        """
        self._places = places
        self._strategy, self._programs = strategy, programs
        self._compilations, self._on_fetch = compilations, on_fetch
        self._merges = strategy.merges
        self._needs = (*self._merges[0].needs, *strategy.local.needs)
        self._model = programs.model(self._merges[-1])
        compilations.purpose = "init"
        self._initial = self._at_nodes(programs.init(jax.random.key(seed)))
        self._nodes = {ROOT: self._begun(self._merges[-1])}
        # may others move a replica that is at work? Then steps must not donate it
        self.shared = self._merges[0].moves_working
        self._levels: dict[str, int] = {}  # of the nodes
        self._replicas: dict[int, Replica] = {}
        self._away: dict[int, Replica | None] = {}  # what workers took to work
        compilations.purpose = "other"
        # what a replica sends: its parameters and model state
        self.num_bytes = tree.num_bytes(self._initial)

    @property
    def has_statistics(self) -> bool:
        """Does the model have state that padded examples would change?"""
        return any(tree.is_float(leaf) for leaf in jax.tree.leaves(self._initial[1]))

    def model(self) -> Model:
        """The root's model as it is now, in the initial one's dtypes."""
        return self._model(self._nodes[ROOT], *self._initial)

    def report(self) -> dict[str, float]:
        """The counters of the root's merge."""
        report = self._merges[-1].report
        if not report:
            return {}
        return {k: float(v) for k, v in report(self._nodes[ROOT]).items()}

    def merge_of(self, order: MergeOrder) -> Merge:
        """The merge of an order's node: that of its level; the root's is the last."""
        last = len(self._merges) - 1
        level = last if order.node == ROOT else min(order.level, last)
        return self._merges[level]

    def replica(self, worker: int) -> Replica:
        """What the worker holds; at first a copy of the root's model as it is now."""
        if worker not in self._replicas:
            self._compilations.purpose = "init"
            begin = self._programs.replica(self._strategy.local, self._needs)
            replica = begin(*self.model())
            self._replicas[worker] = self._at_worker(worker, replica)
            self._on_fetch(worker)
            self._compilations.purpose = "other"
        return self._replicas[worker]

    def forget(self, worker: int) -> None:
        """The worker's next work begins with a copy of the root's model."""
        self._replicas.pop(worker, None)
        self._away.pop(worker, None)

    def begin_anew(self, worker: int) -> None:
        """What the worker holds is of no use: it goes on from the root's model.

        The merge's own slots stay, which no step touches: a model that lies in the
        mailbox, or a gradient that the server still has of it.
        """
        before = self._replicas[worker].carry
        self.forget(worker)
        replica = self.replica(worker)
        own = {k: v for k, v in before.items() if k in OWN and k != "start"}
        kept = {**replica.carry, **own}
        self._replicas[worker] = replica._replace(carry=kept)

    def take(self, worker: int) -> Replica:
        """The replica that a worker begins its work with."""
        replica = self.replica(worker)
        if not self.shared:
            del self._replicas[worker]  # its buffers are given away
        self._away[worker] = replica if self.shared else None
        return replica

    def land(self, worker: int, replica: Replica) -> None:
        """The replica that a worker comes back with."""
        before = self._away.pop(worker)
        now = self._replicas.get(worker)
        # nobody moved it: nothing to add up
        moved = before is not None and now is not None and now is not before
        if moved:
            replica = self._programs.landed(now, before, replica)
        self._replicas[worker] = replica

    def merge(self, order: MergeOrder, facts: np.ndarray) -> Stamps | None:
        """Carry out a merge, or a fetch; with places, when its parts were done.

        `facts` are packed, as `Accounts.facts` has them; the times are stamps
        of `time.perf_counter`.
        """
        merge, node = self.merge_of(order), order.node
        if node not in self._nodes:  # every node begins at the initial model
            self._nodes[node] = self._begun(merge)
        self._levels[node] = order.level
        start = time.perf_counter()
        members = (*order.members, *order.passive)
        moves = not all(self._is_here(m) for m in members)
        replicas = tuple(self._gathered(m) for m in members)
        gathered = self._waited(replicas) if moves else start
        self._compilations.purpose = "merge"
        if order.op == "fetch":
            replicas = self._programs.fetch(merge)(self._nodes[node], replicas)
        else:
            self._nodes[node], replicas = self._programs.merge(merge)(
                self._nodes[node], replicas, facts, order.op
            )
        self._compilations.purpose = "other"
        merged = self._waited((self._nodes[node], replicas))
        for member, replica in zip(members, replicas, strict=True):
            self._take_back(member, replica)
        if not self._places:
            return None
        there = [
            self._replicas[m]
            for m in members
            if isinstance(m, int) and not self._is_here(m)
        ]
        finish = self._waited(there) if moves else merged
        return Stamps(start, gathered, merged, finish)

    def _waited(self, trees: Any) -> float:
        """The time when all of it is there, which only real devices are waited for."""
        if self._places:
            jax.block_until_ready(trees)
        return time.perf_counter()

    def _begun(self, merge: Merge) -> Any:
        """The state of a node that begins at the initial model."""
        return self._at_nodes(self._programs.state(merge)(*self._initial))

    def _gathered(self, member: int | str) -> Replica:
        """What a member is, on the device of the nodes."""
        found = self.member(member)
        return found if self._is_here(member) else self._at_nodes(found)

    def _is_here(self, member: int | str) -> bool:
        """Is it on the device of the nodes?"""
        if not self._places or isinstance(member, str):
            return True
        return self._places.workers[member] == self._places.nodes

    def seen(self, member: int | str) -> Model:
        """A member's model, on the device of the nodes."""
        replica = self._gathered(member)
        return replica.params, replica.model_state

    def _at_nodes(self, trees: Any) -> Any:
        """The trees on the device of the nodes."""
        device = self._places.nodes if self._places else None
        return trees if device is None else jax.device_put(trees, device)

    def _at_worker(self, worker: int, replica: Replica) -> Replica:
        device = self._places.workers[worker] if self._places else None
        return replica if device is None else jax.device_put(replica, device)

    def member(self, member: int | str) -> Replica:
        """What a worker holds, or what a node is to the one above it."""
        if isinstance(member, int):
            return self.replica(member)
        return self._programs.member(self._merge_at(member))(self._nodes[member])

    def _take_back(self, member: int | str, replica: Replica) -> None:
        if isinstance(member, int):
            here = self._is_here(member)
            self._replicas[member] = (
                replica if here else self._at_worker(member, replica)
            )
        else:
            adopt = self._programs.adopt(self._merge_at(member))
            self._nodes[member] = adopt(self._nodes[member], replica)

    def _merge_at(self, node: str) -> Merge:
        return self._merges[min(self._levels[node], len(self._merges) - 1)]
