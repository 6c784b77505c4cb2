"""The whole state of a run between two events, as checkpoints have it."""

from typing import Any, NamedTuple

import jax

from hetjax.checkpointable import Leaves
from hetjax.engine.protocols import EvaluatedModel, Runtime
from hetjax.engine.run_records import RunRecords
from hetjax.engine.tape_writer import TapeWriter


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
        held = [
            (time, Leaves(jax.tree.leaves(seen.model)), seen.metrics)
            for time, seen in self.writer.held
        ]
        recorder = self.runtime.recorder
        return {
            "machine": self._machine,
            "writer": self.writer.save(),
            "held": held,
            "player": self.runtime.player.save(),
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
            if fields:
                player.load_outcome(worker, fields)
            if self.runtime.real:
                clock.resume_round(worker, fields and fields["arrival"])
        return True
