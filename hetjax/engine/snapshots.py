"""Cuts: a run between two events as one value, saved while the run goes on.

A cut holds everything that decides how the run continues: the policy's state, the
sampler, the clock, the ledger, replicas and states, and the outcomes of the local
rounds that are under way. Where these are computed at once (a simulated machine) the
cut is complete at once. On real workers it is complete when each round that was under
way has arrived: its outcome is what the worker sent before the cut and the loop takes
in after it (Chandy and Lamport's snapshot of a distributed system, with arrivals in the
place of messages). Whoever continues from the cut sees these rounds arrive, as the run
did.
"""

from collections.abc import Callable
from typing import Any

from hetjax.checkpoint.checkpoint_manager import CheckpointManager, Snapshot
from hetjax.engine.protocols import CheckpointSupport, RoundResult, Unreachable
from hetjax.machine import Arrival


class Snapshots:
    """The cuts of one run: taken when they are due, completed as rounds arrive."""

    def __init__(
        self,
        saver: CheckpointManager,
        kept: CheckpointSupport,
        player: Any,
        save: Callable[[], dict[str, Any]],
        *,
        rests: bool,
    ):
        """`save()` is the run without the outcomes of the rounds in flight.

        `rests`: will there be moments in which no worker has a round?
        """
        self._saver, self._player, self._at_rest = saver, player, kept.at_rest
        self._prefers_rest = kept.at_rest or (rests and saver.prefers_rest)
        self._whole = kept.whole
        self._is_due = kept.hear_due(saver.is_due)
        self._save = save
        if not (kept.at_rest or kept.whole):
            player.on_outcome = self.arrived
        self._open: Snapshot | None = None
        self._awaited: set[int] = set()  # workers whose rounds the open cut waits for
        self._last = ""  # the cut before the run ends: "wanted", then "taken"

    def between_events(self, evals: int, working: frozenset[int]) -> None:
        """Take a cut if one is due; `working` workers have a round under way."""
        if self._prefers_rest or self._open is not None:
            return
        if self._is_due(evals):
            self._take(evals, working)

    def between_rounds(self, evals: int, working: frozenset[int]) -> None:
        """As `between_events`, before new rounds begin: does no worker have one?"""
        if not self._prefers_rest or working or self._open is not None:
            return
        if self._last == "wanted" or self._is_due(evals):
            self._take(evals, working, wait=self._last == "wanted")

    def is_done(self, evals: int, working: frozenset[int]) -> bool:
        """The run is to end: is a last cut complete? Until then the run goes on."""
        if not self._last:
            self._last = "wanted"
            if not self._at_rest:
                self._take(evals, working, wait=True)
        return self._last == "taken" and self._open is None

    @property
    def problem(self) -> str:
        """Why the run must end: a cut could not be kept."""
        return self._saver.problem

    def _take(self, evals: int, working: frozenset[int], *, wait: bool = False) -> None:
        """Take a cut now, unless the one before is still being written (or `wait`)."""
        self._open = self._saver.begin(evals, wait=wait)
        if self._open is None:
            return
        if self._last == "wanted":
            self._last = "taken"
        self._open.add("run", self._save())
        self._awaited = set() if self._whole else set(working)
        for worker in sorted(self._awaited):
            outcome = self._player.outcome(worker)
            if outcome is not None:
                self._add(worker, None, outcome)
        self._commit_if_complete()

    def arrived(self, arrival: Arrival, outcome: RoundResult) -> None:
        """Add the outcome of a round that the open cut waits for, if it does."""
        if self._open is not None and arrival.worker in self._awaited:
            try:
                self._add(arrival.worker, arrival, outcome)
            except Unreachable:  # it is lost as soon as it was there
                self._awaited.discard(arrival.worker)
            self._commit_if_complete()

    def _add(self, worker: int, arrival: Arrival | None, outcome: RoundResult) -> None:
        assert self._open is not None
        fields = {"arrival": arrival, **self._player.saved_outcome(outcome)}
        self._open.add(f"outcome {worker}", fields)
        self._awaited.discard(worker)

    def lost(self, worker: int) -> None:
        """A worker was lost: whoever continues from the cut loses its round, too."""
        self._awaited.discard(worker)
        self._commit_if_complete()

    def _commit_if_complete(self) -> None:
        if self._open is not None and not self._awaited:
            self._open.commit()
            self._open = None
