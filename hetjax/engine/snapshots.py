"""Snapshots of a run in progress: taken when they are due, completed as rounds arrive.

A snapshot holds everything that decides how the run continues: the policy's state, the
sampler, the clock, the ledger, replicas and states, and the outcomes of the local
rounds in flight. On a simulated machine these are computed at once, and the snapshot is
complete at once. On real workers it is complete when each round in flight has arrived:
as in Chandy and Lamport's snapshots of distributed systems, with arrivals in the place
of messages. A run that continues from the snapshot sees these rounds arrive.
"""

from typing import Any, NamedTuple

import jax

from hetjax.checkpoint.checkpoint_manager import CheckpointManager, Snapshot
from hetjax.checkpointable import Leaves
from hetjax.engine import tape
from hetjax.engine.capabilities import CheckpointSupport, Unreachable
from hetjax.engine.protocols import EvaluatedModel, RoundResult, Runtime
from hetjax.engine.run_records import RunRecords
from hetjax.engine.tape_writer import TapeWriter
from hetjax.machine import Arrival

CANCELLED = {"cancelled": True}  # in the place of an outcome


class WholeRun(NamedTuple):
    """All parts of a run that change."""

    runtime: Runtime
    writer: TapeWriter
    records: RunRecords

    @property
    def _machine(self) -> list[Any]:
        """The workers' names and the kind of machine, which a snapshot has to fit."""
        assert self.runtime.checkpoints is not None  # else there are no snapshots
        names = [w.name for w in self.runtime.clock.workers]
        return [names, self.runtime.checkpoints.kind]

    def save(self) -> dict[str, Any]:
        """Return the state, without the rounds in flight."""
        recorder, player = self.runtime.recorder, self.runtime.player
        if tape.Synchronize in player.plays:
            player.plays[tape.Synchronize](tape.Synchronize())
            self.records.check_losses()
        held = [
            (time, Leaves(jax.tree.leaves(seen.model)), seen.metrics)
            for time, seen in self.writer.held
        ]
        return {
            "machine": self._machine,
            "writer": self.writer.save(),
            "held": held,
            "player": player.save(),
            "records": self.records.save(),
            "clock": self.runtime.clock.save(),
            **({} if recorder is None else {"tape": recorder.save()}),
        }

    def continue_from(self, saved: dict[str, Any]) -> bool:
        """Continue from a snapshot: what `save` returned, and outcomes of rounds.

        If it is of other workers, the policy begins again at the root's model, and the
        result is False.
        """
        clock, player, run = self.runtime.clock, self.runtime.player, saved["run"]
        recorder = self.runtime.recorder
        if run["machine"] != self._machine:
            player.load_root(run["player"]["root"])
            writer, before = self.writer, run["writer"]
            writer.examples.load_for_others(before["examples"])
            writer.ledger.load_for_others(before["ledger"])
            writer.due = before["due"]
            self.records.load_for_others(run["records"], run["machine"][0])
            clock.start_at(self.records.history.duration)
            if recorder is not None:
                recorder.start_at(clock.now)
            return False
        player.load(run["player"])
        self.writer.load(run["writer"])
        self.writer.held.extend(
            (time, EvaluatedModel(player.model_of(leaves), metrics))
            for time, leaves, metrics in run["held"]
        )
        self.records.load(run["records"])
        clock.load(run["clock"])
        if recorder is not None:
            recorder.load(run["tape"], clock.now)
        for worker in sorted(clock.roster.working):
            fields = saved.get(f"outcome {worker}")  # None: the player has it
            if fields == CANCELLED:
                # it stays in flight, without a deadline, until the policy cancels it
                # again: one that decides by what was counted does so
                continue
            if fields:
                player.load_outcome(worker, fields)
            if self.runtime.real:
                clock.resume_round(worker, fields and fields["arrival"])
        return True


class Snapshots:
    """The snapshots of one run; none without a manager."""

    def __init__(
        self, manager: CheckpointManager | None, run: WholeRun, *, rests: bool
    ):
        """`rests`: whether there will be moments in which no round is in flight."""
        support = run.runtime.checkpoints or CheckpointSupport("")
        self._manager, self._run, self._player = manager, run, run.runtime.player
        self._at_rest, self._whole = support.at_rest, support.whole
        # a player that is ahead is saved between events
        self._prefers_rest = support.at_rest
        if manager is not None:
            self._prefers_rest |= rests and not support.whole and manager.prefers_rest
            self._is_due = run.runtime.coordination.snapshot_due(manager.is_due)
        self._hooked = manager is not None and not (support.at_rest or support.whole)
        if self._hooked:
            self._player.on_outcome = self.arrived
        self._open: Snapshot | None = None
        self._awaited: set[int] = set()  # workers whose rounds the open snapshot awaits
        self._last = ""  # the snapshot before the run ends: "requested", then "taken"

    @property
    def _evals(self) -> int:
        return len(self._run.records.history.evals)

    @property
    def rests(self) -> bool:
        """Whether a snapshot may be taken before the next rounds begin."""
        return self._manager is not None and self._prefers_rest

    def between_events(self) -> None:
        """Take a snapshot if one is due; end the run if one could not be written."""
        if self._manager is None:
            return
        waits = self._prefers_rest or self._open is not None
        if not waits and self._is_due(self._evals):
            self._take()
        if self._manager.problem:
            self._run.records.stop(self._manager.problem)

    def between_rounds(self) -> None:
        """Like `between_events`, after merges and before new rounds begin."""
        if not self.rests:
            return
        if self._run.runtime.clock.roster.working or self._open is not None:
            return
        if self._last == "requested" or self._is_due(self._evals):
            self._take(wait=self._last == "requested")

    def is_done(self) -> bool:
        """Whether the last snapshot is complete; the first call requests it."""
        if self._manager is None:
            return True
        if not self._last:
            self._last = "requested"
            if not self._at_rest:
                self._take(wait=True)
        return self._last == "taken" and self._open is None

    def _take(self, *, wait: bool = False) -> None:
        """Take a snapshot, unless (or, with `wait`, once) the last one is written."""
        assert self._manager is not None
        self._open = self._manager.begin(self._evals, wait=wait)
        if self._open is None:
            return
        if self._last == "requested":
            self._last = "taken"
        self._open.add("run", self._run.save())
        working = () if self._whole else self._run.runtime.clock.roster.working
        self._awaited = set(working)
        for worker in sorted(self._awaited):
            outcome = self._player.outcome(worker)
            if outcome is not None:
                self._add(worker, None, outcome)
        self._commit_if_complete()

    def arrived(self, arrival: Arrival, outcome: RoundResult) -> None:
        """Add the outcome of a round that the open snapshot awaits."""
        if self._open is not None and arrival.worker in self._awaited:
            try:
                self._add(arrival.worker, arrival, outcome)
            except Unreachable:  # the worker was lost right after its arrival
                self._awaited.discard(arrival.worker)
            self._commit_if_complete()

    def _add(self, worker: int, arrival: Arrival | None, outcome: RoundResult) -> None:
        assert self._open is not None
        fields = {"arrival": arrival, **self._player.saved_outcome(outcome)}
        self._open.add(f"outcome {worker}", fields)
        self._awaited.discard(worker)

    def lost(self, worker: int) -> None:
        """Await a lost worker's round no longer: a run that continues loses it, too."""
        self._awaited.discard(worker)
        self._commit_if_complete()

    def cancelled(self, worker: int) -> None:
        """Await a cancelled round no longer; a run that continues cancels it, too."""
        if self._open is not None and worker in self._awaited:
            self._open.add(f"outcome {worker}", CANCELLED)
            self._awaited.discard(worker)
            self._commit_if_complete()

    def close(self) -> None:
        """Detach from the player."""
        if self._hooked:
            self._player.on_outcome = None

    def _commit_if_complete(self) -> None:
        if self._open is not None and not self._awaited:
            self._open.commit()
            self._open = None
