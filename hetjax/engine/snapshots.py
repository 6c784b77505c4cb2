"""Snapshots of a run in progress: taken when they are due, completed as rounds arrive.

A snapshot holds everything that decides how the run continues: the policy's state, the
sampler, the clock, the ledger, replicas and states, and the outcomes of the local
rounds in flight. On a simulated machine these are computed at once, and the snapshot is
complete at once. On real workers it is complete when each round in flight has arrived:
as in Chandy and Lamport's snapshots of distributed systems, with arrivals in the place
of messages. A run that continues from the snapshot sees these rounds arrive.
"""

from collections.abc import Callable
from typing import Any

from hetjax.checkpoint.checkpoint_manager import CheckpointManager, Snapshot
from hetjax.engine.capabilities import CheckpointSupport, IsDue, Unreachable
from hetjax.engine.protocols import RoundResult
from hetjax.machine import Arrival


class Snapshots:
    """The snapshots of one run."""

    def __init__(
        self,
        manager: CheckpointManager,
        support: CheckpointSupport,
        player: Any,
        save: Callable[[], dict[str, Any]],
        *,
        rests: bool,
        snapshot_due: Callable[[IsDue], IsDue],
    ):
        """`save()` returns the run without the outcomes of the rounds in flight.

        `rests`: whether there will be moments in which no round is in flight.
        """
        self._manager, self._player = manager, player
        self._at_rest, self._whole = support.at_rest, support.whole
        self._prefers_rest = support.at_rest or (rests and manager.prefers_rest)
        self._is_due = snapshot_due(manager.is_due)
        self._save = save
        self._hooked = not (support.at_rest or support.whole)
        if self._hooked:
            player.on_outcome = self.arrived
        self._open: Snapshot | None = None
        self._awaited: set[int] = set()  # workers whose rounds the open snapshot awaits
        self._last = ""  # the snapshot before the run ends: "requested", then "taken"

    def between_events(self, evals: int, working: frozenset[int]) -> None:
        """Take a snapshot if one is due; `working` workers have a round in flight."""
        if self._prefers_rest or self._open is not None:
            return
        if self._is_due(evals):
            self._take(evals, working)

    def between_rounds(self, evals: int, working: frozenset[int]) -> None:
        """Like `between_events`, after merges and before new rounds begin."""
        if not self._prefers_rest or working or self._open is not None:
            return
        if self._last == "requested" or self._is_due(evals):
            self._take(evals, working, wait=self._last == "requested")

    def is_done(self, evals: int, working: frozenset[int]) -> bool:
        """Whether the last snapshot is complete; the first call requests it."""
        if not self._last:
            self._last = "requested"
            if not self._at_rest:
                self._take(evals, working, wait=True)
        return self._last == "taken" and self._open is None

    @property
    def problem(self) -> str:
        """The reason to end the run if a snapshot could not be written, or ""."""
        return self._manager.problem

    def _take(self, evals: int, working: frozenset[int], *, wait: bool = False) -> None:
        """Take a snapshot, unless (or, with `wait`, once) the last one is written."""
        self._open = self._manager.begin(evals, wait=wait)
        if self._open is None:
            return
        if self._last == "requested":
            self._last = "taken"
        self._open.add("run", self._save())
        self._awaited = set() if self._whole else set(working)
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

    def close(self) -> None:
        """Detach from the player."""
        if self._hooked:
            self._player.on_outcome = None

    def _commit_if_complete(self) -> None:
        if self._open is not None and not self._awaited:
            self._open.commit()
            self._open = None
