"""The executor of a mesh: rounds join the wave that is forming."""

from hetjax.engine.protocols import Assignment, Outcome, TakeTurns
from hetjax.runtimes.inline import lead_alone
from hetjax.runtimes.mesh.clock import MeshClock
from hetjax.runtimes.mesh.wave import LateOutcome
from hetjax.runtimes.mesh.waves import Waves


class MeshExecutor:
    """Collects the assignments of a wave; the clock launches it."""

    def __init__(self, waves: Waves, clock: MeshClock):
        """`clock` tells which wave's arrivals are being handled."""
        self._waves, self._clock = waves, clock

    def lead(self, take_turns: TakeTurns) -> None:
        """Take all turns on the caller's thread."""
        lead_alone(take_turns)

    def start(self, assignment: Assignment) -> None:
        """Add the assignment to the wave that is forming."""
        self._waves.start(assignment)

    def flush(self) -> None:
        """Do nothing: a wave is complete when all arrivals of the last are handled."""

    def finish(self, worker: int) -> LateOutcome:
        """The outcome of a round, whose numbers are known later."""
        assert self._clock.wave is not None  # it has arrived
        return LateOutcome(self._clock.wave, worker, self._waves.read)

    def drop(self, worker: int) -> None:
        """Do nothing: no worker is lost on a mesh."""

    def outcome(self, worker: int) -> None:
        """Never asked: a run is cut when no round is under way."""

    def load(self, worker: int, outcome: Outcome) -> None:
        """Refuse: a run is cut when no round is under way."""
        raise ValueError(f"worker {worker} has a round in a checkpoint of a mesh")

    def close(self) -> list[int]:
        """Wait for what was launched."""
        self._waves.wait()
        return []
