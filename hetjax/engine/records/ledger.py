"""The ledger of a run: what each worker did since its last merge, and in total."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.checkpointable import Checkpointable
from hetjax.engine.records.timeline import Timeline, WorkerRecord
from hetjax.machine.merge_times import Moves, Stamps, moves_of
from hetjax.machine.topology import Topology
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

    The updates of a round whose outcome is dropped no longer count: its gradient was
    overwritten by the next one, or the worker fetched another model in its place.
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
        "_under_way",
        "_merging_until",
        "_versions",
        "_fetched",
        "_mail",
        "_unseen",
        "_dropped",
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

        `overwrites`: does a worker hold the gradient of its last step alone? `accrues`:
        does it hold a sum of gradients, which outlasts a fetch?
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
        # the node right above each member, and what its last merge was pushed
        self._above = {
            m: n for n, node in topology.nodes.items() for m in node.children
        }
        self._pushed: dict[str, dict[int | str, _Pushed]] = {}
        # batch size and learning rate of the last round
        self._last: dict[int | str, _Last] = {}
        # working worker -> start of its round [s]
        self._under_way: dict[int, float] = {}
        self._merging_until = [0.0] * n  # [s] end of each worker's last merge
        self._versions: dict[str, int] = {}  # of a node's model
        # the version of the node's model that a member has, and that is in its mailbox
        self._fetched: dict[int | str, int] = {}
        self._mail: dict[int | str, int] = {}
        # merges that the run may not see: visible when, and bytes of a model
        self._unseen: list[tuple[float, int, MergeAction]] = []
        # steps that do not count as updates, and the rounds of the last of these
        self._dropped: dict[int, tuple[int, tuple[Arrival, ...]]] = {}

    def load_for_others(self, saved: dict[str, Any]) -> None:
        """Continue the totals of a run that had other workers.

        Those that are not here any more come behind those that are. Seconds in which a
        worker was not there count as waiting.
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
        self._dropped = {index[before[k]]: x for k, x in saved["_dropped"].items()}

    def record_dispatch(
        self, worker: int, local_round: LocalRound, start: float, learning_rate: float
    ) -> None:
        """Record that a worker was given a round that begins at `start`."""
        sizes = self.records[worker].batch_size_over_time
        if local_round.local_steps and (
            not sizes or sizes[-1][1] != local_round.batch_size
        ):
            sizes.append((start, float(local_round.batch_size)))
        self._under_way[worker] = start
        self._last[worker] = (local_round.batch_size, learning_rate)

    def record_merge(self, worker: int, start: float, stamps: Stamps) -> None:
        """Record that a worker merged, or queued for it, from `start` on.

        Of two merges at the same time, the second begins when the first is done.
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
        self, action: MergeAction, num_bytes: int, visible: float, *, next_look: float
    ) -> None:
        """Count the bytes of the models that a merge moves, visible from a time on.

        `next_look` is the time of the next evaluation, which may be the run's last.
        """
        self._move(action, num_bytes)
        if visible > next_look:
            self._unseen.append((visible, num_bytes, action))
        if self._unseen:
            self._unseen = [m for m in self._unseen if m[0] > next_look]

    def unseen(self, time: float) -> tuple[list[tuple[float, MergeAction]], int]:
        """The merges that are visible after `time` [s], when, and the bytes they move.

        `time` is that of the next evaluation, or of the last one.
        """
        found = [m for m in self._unseen if m[0] > time]
        moved = 0
        for _, num_bytes, action in found:
            workers, sends, gets = _models_of(action)
            moved += len(workers) * (sends + gets) * num_bytes
        return [(visible, action) for visible, _, action in found], moved

    def drop_unseen(self, end: float) -> None:
        """No longer count the bytes of merges that are visible after `end` [s]."""
        for visible, num_bytes, action in self._unseen:
            if visible > end:
                self._move(action, -num_bytes)

    def _move(self, action: MergeAction, num_bytes: int) -> None:
        workers, sends, gets = _models_of(action)
        for worker in workers:
            self.records[worker].bytes_received += sends * num_bytes
            self.records[worker].bytes_sent += gets * num_bytes

    def record_fetch(self, worker: int) -> None:
        """Record that a worker got a copy of the root's current model."""
        self._fetched[worker] = self._versions.get(ROOT, 0)

    def has_merged(self, worker: int) -> bool:
        """Has the worker merged everything, and is no round of it in flight?"""
        return worker not in self._under_way and worker not in self._rounds

    def record_arrival(
        self, arrival: Arrival, padded: int, *, finite: bool = True
    ) -> None:
        """Record a finished round; nothing counts if the replica is not finite."""
        worker, local_round = arrival.worker, arrival.local_round
        record = self.records[worker]
        self.timeline.add(worker, "busy", arrival.start, arrival.finish)
        del self._under_way[worker]
        if not finite:
            record.nans += 1
            self._rounds.pop(worker, None)
            return
        steps, examples = local_round.local_steps, local_round.examples
        if self._overwrites and steps:
            self._drop(worker)
        record.updates += steps
        record.examples += examples
        record.padded += padded
        self.updates += steps
        self.examples += examples
        self._rounds.setdefault(worker, []).append(arrival)

    def _drop(self, worker: int) -> None:
        """No longer count the updates of a worker that were never merged."""
        last = self._rounds.pop(worker, [])
        steps = sum(a.local_round.local_steps for a in last)
        total, _ = self._dropped.get(worker, (0, ()))
        self._dropped[worker] = total + steps, tuple(last)
        for counter in (self.records[worker], self):
            counter.updates -= steps

    def steps_of(self, worker: int) -> int:
        """All local steps of a worker, those that do not count as updates among them.

        The random key of a step is made from their number: no two have the same.
        """
        dropped, _ = self._dropped.get(worker, (0, ()))
        return self.records[worker].updates + dropped

    def take_back(self, arrival: Arrival, padded: int) -> None:
        """No longer count a round that turns out not to have been finite.

        The node above, if the worker has merged since, did not merge itself yet.
        """
        worker, local_round = arrival.worker, arrival.local_round
        record = self.records[worker]
        record.nans += 1
        record.padded -= padded
        dropped = arrival in self._dropped.get(worker, (0, ()))[1]
        for counter in (record, self):
            counter.updates -= 0 if dropped else local_round.local_steps
            counter.examples -= local_round.examples
        if dropped:
            return
        rounds, above = self._rounds.get(worker, []), self._above.get(worker)
        if arrival in rounds:  # not merged yet: what came before is lost with it
            del rounds[: rounds.index(arrival) + 1]
            if not rounds:
                del self._rounds[worker]
        elif above is not None and above in self._recent:
            self._take_from(above, worker, _of([arrival]))

    def _take_from(self, node: str, worker: int, did: Recent) -> None:
        """No longer count what a worker did among what the node was pushed."""
        self._recent[node] = _less(self._recent[node], did)
        pushed = self._pushed[node]
        if worker in pushed:  # in the node's last merge
            last, recent = pushed[worker]
            pushed[worker] = last, _less(recent, did)
            self._last[node] = _of_node(pushed.values())

    def record_loss(self, worker: int, time: float) -> None:
        """Record that a worker was lost, with what it did since its last merge."""
        self._rounds.pop(worker, None)
        # a merge in which it takes part, or its queue, also ends here for the worker
        self.timeline.cut(worker, time)
        self._merging_until[worker] = min(self._merging_until[worker], time)
        if worker in self._under_way:
            start = self._under_way.pop(worker)
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
        """Return the statistics of a merge's members, and make it their last merge.

        The result is the table [fields, members] that `WorkerStats.unpacked` takes. A
        member that had no round yet gets the given learning rate.
        """
        members = (*action.members, *action.partners)
        moves = moves_of(action.op)
        staleness = self._take_staleness(action, members, moves)
        pushes = moves.pushes
        if action.op is MergeOp.FETCH and not self._accrues:
            for worker in action.members:
                if isinstance(worker, int):
                    self._drop(worker)
        recent = [
            self._take(m) if pushes and m in action.members else _NOTHING
            for m in members
        ]
        last = [self._last.get(m, (0.0, learning_rate)) for m in members]
        if pushes and action.node in self._above:  # else it is pushed nowhere
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
        """What a member did since its last merge, once."""
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
        # the model of a node with server steps is only changed by those
        if moves.pushes and action.server_steps is None:
            version += 1
        for member in action.members:
            if moves.fetches:
                self._fetched[member] = version
            if moves.requests:
                self._mail[member] = version
        self._versions[node] = version
        return staleness

    def correct(self, corrected: Callable[[np.ndarray], np.ndarray]) -> None:
        """Replace all times by what they turned out to be, before `close`."""
        self.timeline.correct(corrected)
        for k, start in self._under_way.items():
            self._under_way[k] = float(corrected(np.array(start)))
        for record in self.records:
            record.batch_size_over_time = [
                (float(corrected(np.array(time))), size)
                for time, size in record.batch_size_over_time
            ]

    def close(self, duration: float) -> list[WorkerRecord]:
        """Return each worker's record; its five kinds of time sum to the duration.

        Time that is not busy, merging or transfer is waiting, or idle for a worker
        without any segment.
        """
        for worker, start in sorted(self._under_way.items()):
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
    """The workers of a merge, whether they send their models, and whether they get one.

    A merge without transfers needs no link.
    """
    members = (*action.members, *action.partners) if action.transfers else ()
    moves = moves_of(action.op)
    gets = moves.fetches or moves.requests
    return [m for m in members if isinstance(m, int)], moves.pushes, gets


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
    """The means of those who did something; of all if nobody did."""
    every = list(pushed)
    return _mean([x for x, r in every if r.updates] or [x for x, _ in every])


def _mean(last: Sequence[tuple[float, float]]) -> tuple[float, float]:
    n = len(last)
    return sum(size for size, _ in last) / n, sum(
        learning_rate for _, learning_rate in last
    ) / n
