"""The player of a compiled run, which can mark, undo, save and load its state.

The tape is written ahead of the devices up to the next point where a result is needed:
an evaluation, losses that a sampler observes, or metrics that weigh a merge. If a
number turns out not to be finite at such a point (`RoundNotFinite`), the player goes
back to its last mark and plays again, with each result known when its round arrives, so
that the run continues as with the reference player.
"""

from typing import Any, NamedTuple, NoReturn

import jax

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.engine.protocols import EvaluatedModel
from hetjax.engine.replica_store import Model
from hetjax.runtimes.compiled.instruction_collector import InstructionCollector
from hetjax.runtimes.compiled.program_parts import RunState
from hetjax.runtimes.compiled.stretch import PendingOutcome, Stretch
from hetjax.runtimes.inline import run_turns_alone


class Mark(NamedTuple):
    """A point to which `undo` returns."""

    run_state: RunState
    stretch: Stretch
    running: dict[int, PendingOutcome]
    moved: set[int]


class CompiledPlayer(InstructionCollector):
    """Plays the tape of one run, stretch by stretch."""

    run_turns = staticmethod(run_turns_alone)

    def open(self) -> None:
        """Initialize the model, all replicas and all states."""
        job = self._job
        with job.compilations.of("init"):
            self._initial_model = jax.device_put(self._first_model(), self._device)
            self._run_state = self._initial_run_state(self._initial_model)
        self.listen()

    def policy_metrics(self, seen: EvaluatedModel, metrics: Any) -> Any:
        """Return the metrics of an evaluation for the policy."""
        del seen
        return metrics

    # -- mark and undo -----------------------------------------------------------------

    def mark(self) -> Mark:
        """Return a point for `undo`; call it between events, with no pending rounds."""
        self._read_all()
        return Mark(
            self._run_state, self._stretch.copy(), dict(self._running), set(self._moved)
        )

    def undo(self, mark: Mark) -> None:
        """Return to a mark; from there on, each result is known when it arrives."""
        self._run_state, self._stretch = mark.run_state, mark.stretch.copy()
        self._running, self._moved = dict(mark.running), set(mark.moved)
        self._launched, self._arrived, self._steps_ahead = [], [], 0
        self.knows_in_time = True

    # -- save and load -----------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return all arrays and the stretch that is not launched yet, at a `mark`."""
        self._read_all()
        root = self._root()
        outcomes = self._stretch.outcomes
        return {
            "root": Leaves(jax.tree.leaves(root)),
            "run_state": Leaves(jax.tree.leaves(self._run_state)),
            "stretch": self._stretch.save(),
            # by index in the stretch, or the outcome itself
            "running": {
                k: outcomes.index(x) if x in outcomes else x.save()
                for k, x in self._running.items()
            },
            "moved": self._moved,
            # so that the resumed run uses the same programs
            "shapes": (
                list(self._kinds),
                self._one_step,
                self._lengths,
                self._buckets.known,
            ),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        run_state = tree.filled(self._run_state, saved["run_state"], "the replicas")
        self._run_state = jax.device_put(run_state, self._device)
        self._stretch = Stretch.restored(saved["stretch"], self.synchronize)
        self._running = {
            k: self._stretch.outcomes[x]
            if isinstance(x, int)
            else PendingOutcome.restored(x, self.synchronize)
            for k, x in saved["running"].items()
        }
        self._moved = saved["moved"]
        kinds, self._one_step, self._lengths, self._buckets.known = saved["shapes"]
        self._kinds = {kind: i for i, kind in enumerate(kinds)}

    def load_root(self, leaves: list[Any]) -> None:
        """Continue from the root alone; everything else starts from its model."""
        root = tree.filled(self._root(), leaves, "the state of the root")
        root = jax.device_put(root, self._device)
        model = self._parts.programs.model(self._parts.merges[-1])(
            root, *self._initial_model
        )
        run_state = self._initial_run_state(model)
        states = self._parts.with_state(run_state.states, -1, 0, root, None)
        self._run_state = run_state._replace(states=states)

    def model_of(self, leaves: list[Any]) -> Model:
        """Return a model from the arrays of a saved model."""
        found = tree.filled(self._initial_model, leaves, "the model")
        return jax.device_put(self._parts.programs.copies(found), self._device)


class UnavailableMetrics(dict[str, float]):
    """Metrics of an evaluation that raise an error when they are read."""

    def __init__(self, error: Exception):
        """`error` is raised by every access."""
        super().__init__()
        self._error = error

    def _read(self, *args: Any) -> NoReturn:
        raise self._error

    __getitem__ = __contains__ = __iter__ = __len__ = _read  # pyright: ignore
    get = keys = values = items = _read  # pyright: ignore
