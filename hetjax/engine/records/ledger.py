"""The ledger of a run: what each worker did since its last merge, and in total."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hetjax.checkpointable import Checkpointable
from hetjax.engine.records.moved_models import ModelVersions, MovedModels
from hetjax.engine.records.timeline import Timeline, WorkerRecord
from hetjax.machine.merge_times import Stamps, Traffic, moves_of
from hetjax.machine.merge_tree import Topology
from hetjax.machine.types import (
    ROOT,
    Arrival,
    LocalRound,
    MergeAction,
    MergeOp,
    WorkerInfo,
)

NUM_STATISTICS = 12  # of a member: the fields of `hetjax.merge.WorkerStats`


class Recent(NamedTuple):
    """What a worker, or all workers below a node, did since its last merge."""

    updates: int = 0
    examples: int = 0

    def plus(self, other: "Recent", sign: int = 1) -> "Recent":
        """Return the sum, or the difference with sign=-1."""
        updates, examples = other
        return Recent(self.updates + sign * updates, self.examples + sign * examples)


_NOTHING = Recent()
_Last = tuple[float, float]  # batch size and learning rate of the last round
_Pushed = tuple[_Last, Recent]


class Ledger(Checkpointable):
    """Counters per worker. Only finished rounds count as updates and examples.

    The updates of a round whose outcome is discarded no longer count: its gradient was
    overwritten by the next one, or the worker fetched another model instead.
    """

    changes = (
        "records",
        "timeline",
        "updates",
        "examples",
        "_rounds",
        "_recent",
        "_pushed",
        "_last",
        "_in_flight",
        "_merging_until",
        "versions",
        "_unseen",
        "_discarded",
    )

    def __init__(
        self,
        workers: Sequence[WorkerInfo],
        topology: Topology,
        *,
        overwrites: bool = False,
        accrues: bool = False,
    ):
        """`overwrites`: whether a worker holds only the gradient of its last step.

        `accrues`: whether it holds a sum of gradients, which a fetch does not clear.
        """
        self._topology, self._overwrites, self._accrues = topology, overwrites, accrues
        self._workers = [w.name for w in workers]
        self.records = [WorkerRecord(w.name) for w in workers]
        self.timeline, self.versions = Timeline(), ModelVersions()
        self.updates = self.examples = 0
        self._rounds: dict[int, list[Arrival]] = {}  # of workers, since they merged
        self._recent: dict[str, Recent] = {}  # of nodes
        # the parent node of each member, and what its members pushed in its last merge
        nodes = topology.nodes.items()
        self._above = {m: name for name, node in nodes for m in node.children}
        self._pushed: dict[str, dict[int | str, _Pushed]] = {}
        self._last: dict[int | str, _Last] = {}
        self._in_flight: dict[int, float] = {}  # starts of rounds, by worker [s]
        self._merging_until = [0.0] * len(workers)  # ends of last merges [s]
        self._unseen: list[MovedModels] = []  # merges that may finish after the run
        # by worker: steps that do not count as updates, and their latest rounds
        self._discarded: dict[int, tuple[int, tuple[Arrival, ...]]] = {}

    def load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue the totals of a run that had other workers.

        Workers that have left are listed after the present ones. Seconds in which a
        worker was absent count as waiting.
        """
        before = [record.name for record in saved["records"]]
        self.updates, self.examples = saved["updates"], saved["examples"]
        versions = saved["versions"]["of_nodes"]
        self.versions.of_nodes = {ROOT: versions.get(ROOT, 0)}
        records = dict(zip(before, saved["records"], strict=True))
        gone = [name for name in before if name not in self._workers]
        here = [records.get(r.name, r) for r in self.records]
        self.records = [*here, *(records[name] for name in gone)]
        index = {name: k for k, name in enumerate([*self._workers, *gone])}
        table = saved["timeline"].table
        table[:, 0] = [index[before[int(k)]] for k in table[:, 0]]
        self.timeline = Timeline(array("d", table.ravel()))
        self._discarded = {index[before[k]]: x for k, x in saved["_discarded"].items()}

    def record_dispatch(
        self, worker: int, local_round: LocalRound, start: float, learning_rate: float
    ) -> None:
        """Record that a round of a worker begins at `start`."""
        sizes = self.records[worker].batch_size_over_time
        size, last = local_round.batch_size, sizes[-1][1] if sizes else None
        if local_round.local_steps and size != last:
            sizes.append((start, float(size)))
        self._in_flight[worker] = start
        self._begin_after_merge(worker)
        self._last[worker] = size, learning_rate

    def start_of(self, worker: int, start: float) -> float:
        """Return when a worker's round in flight begins; `start` if it has none."""
        return self._in_flight.get(worker, start)

    def _begin_after_merge(self, worker: int) -> None:
        """Count a round from the end of its worker's last merge."""
        start = max(self._in_flight[worker], self._merging_until[worker])
        self._in_flight[worker] = start

    def record_merge(self, worker: int, start: float, stamps: Stamps) -> None:
        """Record that a worker merged, or queued for a merge, from `start` on.

        Of two simultaneous merges, the second begins when the first is done.
        """
        start = max(start, self._merging_until[worker])
        add, (began, gathered, merged, finish) = self.timeline.add, stamps
        if gathered > began:  # the models moved between devices
            add(worker, "merging", start, began)
            add(worker, "transfer", began, gathered)
            start = gathered
        add(worker, "merging", start, merged)
        add(worker, "transfer", merged, finish)
        self._merging_until[worker] = max(start, finish)
        if worker in self._in_flight:  # a round that was launched behind the merge
            self._begin_after_merge(worker)

    def record_models(
        self, action: MergeAction, traffic: Traffic, visible: float, due: float
    ) -> None:
        """Count the bytes of the models that a merge moves, `visible` from that time.

        The next evaluation, which may be the last one, is `due` [s].
        """
        merge = MovedModels(visible, traffic, action)
        self.count_bytes(merge)
        if visible > due:
            self._unseen.append(merge)
        if self._unseen:
            self._unseen = self.unseen(due)

    def unseen(self, time: float) -> list[MovedModels]:
        """Return the merges visible after the next or the last evaluation."""
        return [m for m in self._unseen if m.visible > time]

    def count_bytes(self, merge: MovedModels, sign: int = 1) -> None:
        """Count the bytes of a merge; subtract them with sign=-1."""
        workers, sends, receives = merge.transfers
        for worker in workers:
            record, (up, down) = self.records[worker], merge.traffic
            record.bytes_received += sign * sends * int(up)
            record.bytes_sent += sign * receives * int(down)

    def has_merged(self, worker: int) -> bool:
        """Whether the worker has merged all its rounds and has none in flight."""
        return worker not in self._in_flight and worker not in self._rounds

    def record_arrival(
        self, arrival: Arrival, padded: int, *, finite: bool = True
    ) -> None:
        """Record a finished round; nothing counts if the replica is not finite."""
        worker, local_round = arrival.worker, arrival.local_round
        record = self.records[worker]
        self.timeline.add(worker, "busy", arrival.start, arrival.finish)
        del self._in_flight[worker]
        if not finite:
            record.nans += 1
            self._rounds.pop(worker, None)
            return
        if self._overwrites and local_round.local_steps:
            self._discard_updates(worker)
        record.padded += padded
        for counter in (record, self):
            counter.updates += local_round.local_steps
            counter.examples += local_round.examples
        self._rounds.setdefault(worker, []).append(arrival)

    def _discard_updates(self, worker: int) -> None:
        """Subtract the updates of a worker that were never merged."""
        last = tuple(self._rounds.pop(worker, ()))
        steps = sum(a.local_round.local_steps for a in last)
        self._discarded[worker] = self._discarded.get(worker, (0,))[0] + steps, last
        for counter in (self.records[worker], self):
            counter.updates -= steps

    def steps_of(self, worker: int) -> int:
        """Return all local steps of a worker, also those that do not count as updates.

        The random key of a step is made from this number: each step has its own.
        """
        return self.records[worker].updates + self._discarded.get(worker, (0,))[0]

    def undo_arrival(self, arrival: Arrival, padded: int) -> None:
        """Subtract a round whose replica turned out not to be finite.

        If the worker has merged since, its parent node has not merged yet.
        """
        worker, local_round = arrival.worker, arrival.local_round
        record = self.records[worker]
        record.nans += 1
        record.padded -= padded
        discarded = arrival in self._discarded.get(worker, (0, ()))[1]
        for counter in (record, self):
            counter.updates -= 0 if discarded else local_round.local_steps
            counter.examples -= local_round.examples
        if discarded:
            return
        rounds, above = self._rounds.get(worker, []), self._above.get(worker)
        if arrival in rounds:  # not merged yet: earlier rounds are lost with it
            del rounds[: rounds.index(arrival) + 1]
            if not rounds:
                del self._rounds[worker]
        elif above is not None and above in self._recent:  # subtract what was pushed
            did, pushed = _of([arrival]), self._pushed[above]
            self._recent[above] = self._recent[above].plus(did, -1)
            if worker in pushed:  # in the node's last merge
                last, recent = pushed[worker]
                pushed[worker] = last, recent.plus(did, -1)
                self._last[above] = _of_node(pushed.values())

    def record_loss(self, worker: int, time: float) -> None:
        """Record that a worker was lost, with its rounds since its last merge."""
        self._rounds.pop(worker, None)
        # its merge, or its time in the queue, ends here too
        self.timeline.truncate(worker, time)
        self._merging_until[worker] = min(self._merging_until[worker], time)
        if worker in self._in_flight:
            start = self._in_flight.pop(worker)
            self.timeline.add(worker, "busy", start, time, arrived=False)
            self.records[worker].lost += 1

    def record_cancelled(self, worker: int, time: float) -> None:
        """Record a round that was cancelled, and its seconds, in which it was busy."""
        self._rounds.pop(worker, None)
        start, record = self._in_flight.pop(worker), self.records[worker]
        self.timeline.add(worker, "busy", start, time, arrived=False)
        record.cancelled += 1
        record.cancelled_seconds += max(0.0, time - start)

    def take_stats(
        self,
        action: MergeAction,
        share: np.ndarray | None = None,
        accuracy: Sequence[float] | None = None,
        learning_rate: float = 0.0,
    ) -> np.ndarray:
        """Return the statistics of a merge's members since their last merge, once.

        The result is the table [fields, members] that `WorkerStats.unpacked` takes. A
        member without a round so far has the `learning_rate` passed here.
        """
        members = (*action.members, *action.partners)
        staleness = self.versions.take_staleness(action)
        pushes = moves_of(action.op).pushes
        for member, stale in zip(action.members, staleness, strict=False):
            if isinstance(member, int) and pushes:
                histogram = self.records[member].staleness
                histogram[stale] = histogram.get(stale, 0) + 1
        # a part of the model does not replace what the worker did
        if action.op is MergeOp.FETCH and not (self._accrues or action.part):
            for worker in action.members:
                if isinstance(worker, int):
                    self._discard_updates(worker)
        recent = [_NOTHING] * len(members)
        for i, m in enumerate(action.members if pushes else ()):
            if isinstance(m, str):
                recent[i] = self._recent.pop(m, _NOTHING)
            else:
                recent[i] = _of(self._rounds.pop(m, ()))
        last = [self._last.get(m, (0.0, learning_rate)) for m in members]
        if pushes and action.node in self._above:  # the root pushes nowhere
            total = self._recent.get(action.node, _NOTHING)
            self._recent[action.node] = reduce(Recent.plus, recent, total)
            pushed = dict(zip(members, zip(last, recent, strict=True), strict=True))
            self._last[action.node] = _of_node(pushed.values())
            self._pushed[action.node] = pushed
        rows = []  # in the order of the fields of `WorkerStats`
        for i, m in enumerate(members):
            is_worker = isinstance(m, int)
            workers = (m,) if is_worker else self._topology.workers_of(m)
            shares = 1.0 if share is None else sum(share[k] for k in workers)
            (updates, examples), (size, rate) = recent[i], last[i]
            rows.append(
                (
                    m if is_worker else -1,
                    updates,
                    size if updates > 0 else 0.0,
                    examples,
                    rate,
                    staleness[i],
                    len(workers),
                    shares,
                    accuracy[i] if accuracy else 0.0,
                    action.weight,
                    action.server_steps or 0,
                    len(self._workers),
                )
            )
        return np.array(rows, np.float32).reshape(-1, NUM_STATISTICS).T

    def map_times(self, time_map: Callable[[np.ndarray], np.ndarray]) -> None:
        """Map all times, planned to true, before `close`."""

        def true(time: float) -> float:
            return float(time_map(np.array(time)))

        self.timeline.map_times(time_map)
        self._in_flight = {k: true(start) for k, start in self._in_flight.items()}
        for record in self.records:
            sizes = record.batch_size_over_time
            record.batch_size_over_time = [(true(t), size) for t, size in sizes]

    def close(self, duration: float) -> list[WorkerRecord]:
        """Return each worker's record; its five kinds of time sum to the duration.

        The rest of the time is waiting, or idle for a worker without any segment.
        """
        for worker, start in sorted(self._in_flight.items()):
            self.timeline.add(worker, "busy", start, duration, arrived=False)
        table = self.timeline.table
        seconds = np.clip(table[:, 3], 0, duration) - np.clip(table[:, 2], 0, duration)
        for k, record in enumerate(self.records):
            mine, kind = table[:, 0] == k, table[:, 1] % len(Timeline.kinds)
            record.busy, record.merging, record.transfer = used = [
                float(seconds[mine & (kind == i)].sum()) for i in range(3)
            ]
            record.waiting, record.idle = 0.0, duration
            if mine.any():
                record.waiting = max(0.0, duration - (used[0] + used[1] + used[2]))
                record.idle = 0.0
            sizes = record.batch_size_over_time
            record.batch_size_over_time = [x for x in sizes if x[0] <= duration]
        return self.records


def _of(rounds: Sequence[Arrival]) -> Recent:
    if len(rounds) == 1:  # the most frequent case
        return Recent(rounds[0].local_round.local_steps, rounds[0].local_round.examples)
    every = [a.local_round for a in rounds]
    return Recent(sum(r.local_steps for r in every), sum(r.examples for r in every))


def _of_node(pushed: Iterable[_Pushed]) -> _Last:
    """Return the means over members that took steps; over all if none did."""
    every = list(pushed)
    last = [x for x, r in every if r.updates] or [x for x, _ in every]
    sizes, rates = zip(*last, strict=True)
    return sum(sizes) / len(last), sum(rates) / len(last)
