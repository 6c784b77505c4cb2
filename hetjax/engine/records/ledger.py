"""The ledger of a run: what each worker did since its last merge, and in total."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.checkpointable import Checkpointable
from hetjax.engine.records.timeline import Timeline, WorkerRecord
from hetjax.machine.merge_times import Moves, Stamps, moves_of
from hetjax.machine.merge_tree import Topology
from hetjax.machine.types import (
    ROOT,
    Arrival,
    LocalRound,
    MergeAction,
    MergeOp,
    WorkerInfo,
)


class Recent(NamedTuple):
    """What a worker, or all workers below a node, did since its last merge."""

    updates: int = 0
    examples: int = 0


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
        "_versions",
        "_fetched",
        "_mail",
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
        """Start with all counters at zero.

        `overwrites`: whether a worker holds only the gradient of its last step;
        `accrues`: whether it holds a sum of gradients, which a fetch does not clear.
        """
        self._topology = topology
        self._overwrites, self._accrues = overwrites, accrues
        self._workers = [w.name for w in workers]
        n = len(workers)
        self.records = [WorkerRecord(w.name) for w in workers]
        self.timeline = Timeline()
        self.updates = 0
        self.examples = 0
        self._rounds: dict[int, list[Arrival]] = {}  # of workers, since they merged
        self._recent: dict[str, Recent] = {}  # of nodes
        # the parent node of each member, and what its members pushed in its last merge
        self._above = {
            m: n for n, node in topology.nodes.items() for m in node.children
        }
        self._pushed: dict[str, dict[int | str, _Pushed]] = {}
        # batch size and learning rate of the last round
        self._last: dict[int | str, _Last] = {}
        # worker -> start of its round in flight [s]
        self._in_flight: dict[int, float] = {}
        self._merging_until = [0.0] * n  # [s] end of each worker's last merge
        self._versions: dict[str, int] = {}  # of a node's model
        # the version of the node's model that a member has, and that is in its mailbox
        self._fetched: dict[int | str, int] = {}
        self._mail: dict[int | str, int] = {}
        # merges that may finish after the run: (visible [s], bytes of a model, action)
        self._unseen: list[tuple[float, int, MergeAction]] = []
        # by worker: steps that do not count as updates, and their latest rounds
        self._discarded: dict[int, tuple[int, tuple[Arrival, ...]]] = {}

    def load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue the totals of a run that had other workers.

        Workers that have left are listed after the present ones. Seconds in which a
        worker was absent count as waiting.
        """
        before = [record.name for record in saved["records"]]
        self.updates, self.examples = saved["updates"], saved["examples"]
        self._versions = {ROOT: saved["_versions"].get(ROOT, 0)}
        records = dict(zip(before, saved["records"], strict=True))
        gone = [name for name in before if name not in self._workers]
        here = [records.get(r.name, r) for r in self.records]
        self.records = [*here, *(records[name] for name in gone)]
        index = {name: k for k, name in enumerate([*self._workers, *gone])}
        table = np.array(saved["timeline"].numbers).reshape(-1, 4)
        table[:, 0] = [index[before[int(k)]] for k in table[:, 0]]
        self.timeline = Timeline(array("d", table.ravel()))
        self._discarded = {index[before[k]]: x for k, x in saved["_discarded"].items()}

    def record_dispatch(
        self, worker: int, local_round: LocalRound, start: float, learning_rate: float
    ) -> None:
        """Record that a round of a worker begins at `start`."""
        sizes = self.records[worker].batch_size_over_time
        if local_round.local_steps and (
            not sizes or sizes[-1][1] != local_round.batch_size
        ):
            sizes.append((start, float(local_round.batch_size)))
        self._in_flight[worker] = start
        self._last[worker] = (local_round.batch_size, learning_rate)

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

    def record_models(
        self,
        action: MergeAction,
        num_bytes: int,
        visible: float,
        *,
        next_evaluation: float,
    ) -> None:
        """Count the bytes of the models that a merge moves, `visible` from that time.

        `next_evaluation` [s] may be the last one of the run.
        """
        self._move(action, num_bytes)
        if visible > next_evaluation:
            self._unseen.append((visible, num_bytes, action))
        if self._unseen:
            self._unseen = [m for m in self._unseen if m[0] > next_evaluation]

    def unseen(self, time: float) -> tuple[list[tuple[float, MergeAction]], int]:
        """Return the merges visible after `time` [s], each with when, and their bytes.

        `time` is that of the next evaluation, or of the last one.
        """
        found = [m for m in self._unseen if m[0] > time]
        moved = 0
        for _, num_bytes, action in found:
            workers, sends, receives = _models_of(action)
            moved += len(workers) * (sends + receives) * num_bytes
        return [(visible, action) for visible, _, action in found], moved

    def discard_unseen(self, end: float) -> None:
        """Subtract the bytes of merges that are visible after `end` [s]."""
        for visible, num_bytes, action in self._unseen:
            if visible > end:
                self._move(action, -num_bytes)

    def _move(self, action: MergeAction, num_bytes: int) -> None:
        workers, sends, receives = _models_of(action)
        for worker in workers:
            self.records[worker].bytes_received += sends * num_bytes
            self.records[worker].bytes_sent += receives * num_bytes

    def record_fetch(self, worker: int) -> None:
        """Record that a worker got a copy of the root's current model."""
        self._fetched[worker] = self._versions.get(ROOT, 0)

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
        steps, examples = local_round.local_steps, local_round.examples
        if self._overwrites and steps:
            self._discard_updates(worker)
        record.updates += steps
        record.examples += examples
        record.padded += padded
        self.updates += steps
        self.examples += examples
        self._rounds.setdefault(worker, []).append(arrival)

    def _discard_updates(self, worker: int) -> None:
        """Subtract the updates of a worker that were never merged."""
        last = self._rounds.pop(worker, [])
        steps = sum(a.local_round.local_steps for a in last)
        total, _ = self._discarded.get(worker, (0, ()))
        self._discarded[worker] = total + steps, tuple(last)
        for counter in (self.records[worker], self):
            counter.updates -= steps

    def steps_of(self, worker: int) -> int:
        """Return all local steps of a worker, also those that do not count as updates.

        The random key of a step is made from this number: each step has its own.
        """
        dropped, _ = self._discarded.get(worker, (0, ()))
        return self.records[worker].updates + dropped

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
        elif above is not None and above in self._recent:
            self._take_from(above, worker, _of([arrival]))

    def _take_from(self, node: str, worker: int, did: Recent) -> None:
        """Subtract a worker's round from what was pushed to the node."""
        self._recent[node] = _less(self._recent[node], did)
        pushed = self._pushed[node]
        if worker in pushed:  # in the node's last merge
            last, recent = pushed[worker]
            pushed[worker] = last, _less(recent, did)
            self._last[node] = _of_node(pushed.values())

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

    def take_stats(
        self,
        action: MergeAction,
        *,
        share: np.ndarray | None = None,
        accuracy: Sequence[float] | None = None,
        learning_rate: float = 0.0,
    ) -> np.ndarray:
        """Return the statistics of a merge's members since their last merge, once.

        The result is the table [fields, members] that `WorkerStats.unpacked` takes. A
        member without a round so far has the `learning_rate` passed here.
        """
        members = (*action.members, *action.partners)
        moves = moves_of(action.op)
        staleness = self._take_staleness(action, members, moves)
        pushes = moves.pushes
        if action.op is MergeOp.FETCH and not self._accrues:
            for worker in action.members:
                if isinstance(worker, int):
                    self._discard_updates(worker)
        recent = [
            self._take(m) if pushes and m in action.members else _NOTHING
            for m in members
        ]
        last = [self._last.get(m, (0.0, learning_rate)) for m in members]
        if pushes and action.node in self._above:  # the root pushes nowhere
            total = self._recent.get(action.node, _NOTHING)
            self._recent[action.node] = _sum(total, *recent)
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
                    action.server_steps or 0,
                    len(self._workers),
                )
            )
        return np.array(rows, np.float32).T

    def _take(self, member: int | str) -> Recent:
        """Return what a member did since its last merge, once."""
        if isinstance(member, str):
            return self._recent.pop(member, _NOTHING)
        return _of(self._rounds.pop(member, ()))

    def _take_staleness(
        self, action: MergeAction, members: tuple[int | str, ...], moves: Moves
    ) -> list[int]:
        """Return how many versions old each member's model is, and update the versions.

        A version is one change of the node's model.
        """
        node = action.node
        version = self._versions.get(node, 0) + (action.server_steps or 0)
        staleness = [version - self._fetched.get(m, 0) for m in members]
        for member, s in zip(action.members, staleness, strict=False):
            if isinstance(member, int) and moves.pushes:
                histogram = self.records[member].staleness
                histogram[s] = histogram.get(s, 0) + 1
            if moves.delivers:
                self._fetched[member] = self._mail[member]
        # only server steps change the model of a node that has them
        if moves.pushes and action.server_steps is None:
            version += 1
        for member in action.members:
            if moves.fetches:
                self._fetched[member] = version
            if moves.requests:
                self._mail[member] = version
        self._versions[node] = version
        return staleness

    def map_times(self, time_map: Callable[[np.ndarray], np.ndarray]) -> None:
        """Map all times, planned to true, before `close`."""
        self.timeline.map_times(time_map)
        for k, start in self._in_flight.items():
            self._in_flight[k] = float(time_map(np.array(start)))
        for record in self.records:
            record.batch_size_over_time = [
                (float(time_map(np.array(time))), size)
                for time, size in record.batch_size_over_time
            ]

    def close(self, duration: float) -> list[WorkerRecord]:
        """Return each worker's record; its five kinds of time sum to the duration.

        The rest of the time is waiting, or idle for a worker without any segment.
        """
        for worker, start in sorted(self._in_flight.items()):
            self.timeline.add(worker, "busy", start, duration, arrived=False)
        table = np.array(self.timeline.numbers).reshape(-1, 4)
        seconds = np.clip(table[:, 3], 0, duration) - np.clip(table[:, 2], 0, duration)
        for k, record in enumerate(self.records):
            mine, kind = table[:, 0] == k, table[:, 1] % len(Timeline.kinds)
            record.busy = float(seconds[mine & (kind == 0)].sum())
            record.merging = float(seconds[mine & (kind == 1)].sum())
            record.transfer = float(seconds[mine & (kind == 2)].sum())
            used = record.busy + record.merging + record.transfer
            rest = max(0.0, duration - used)
            record.waiting = rest if mine.any() else 0.0
            record.idle = 0.0 if mine.any() else duration
            sizes = record.batch_size_over_time
            record.batch_size_over_time = [
                size for size in sizes if size[0] <= duration
            ]
        return self.records


def _models_of(action: MergeAction) -> tuple[list[int], bool, bool]:
    """Return a merge's workers, and whether they send their models and receive one.

    A merge without transfers has none, as it needs no link.
    """
    members = (*action.members, *action.partners) if action.transfers else ()
    moves = moves_of(action.op)
    receives = moves.fetches or moves.requests
    return [m for m in members if isinstance(m, int)], moves.pushes, receives


def _of(rounds: Iterable[Arrival]) -> Recent:
    every = [a.local_round for a in rounds]
    if len(every) == 1:  # the most frequent case
        return Recent(every[0].local_steps, every[0].examples)
    return Recent(sum(r.local_steps for r in every), sum(r.examples for r in every))


def _sum(*recent: Recent) -> Recent:
    return Recent(sum(r.updates for r in recent), sum(r.examples for r in recent))


def _less(total: Recent, part: Recent) -> Recent:
    return Recent(total.updates - part.updates, total.examples - part.examples)


def _of_node(pushed: Iterable[_Pushed]) -> _Last:
    """Return the means over members that took steps; over all if none did."""
    every = list(pushed)
    return _mean([x for x, r in every if r.updates] or [x for x, _ in every])


def _mean(last: Sequence[tuple[float, float]]) -> tuple[float, float]:
    n = len(last)
    return sum(size for size, _ in last) / n, sum(
        learning_rate for _, learning_rate in last
    ) / n
