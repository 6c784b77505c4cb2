"""The player of a mesh: it collects supersteps, and launches them as programs.

Replicas stay on their devices. A round joins the wave that is forming, a merge the wave
whose arrivals are handled; when the clock has no more events of it, it is launched. So
the tape runs ahead of the devices, and results are known late.
"""

from typing import Any

import jax

from hetjax import tree
from hetjax.checkpointable import Leaves
from hetjax.engine import tape
from hetjax.engine.evaluation import Evaluator
from hetjax.engine.job import Job
from hetjax.engine.player_parts import Assignment
from hetjax.engine.protocols import Plays, Traits
from hetjax.engine.replica_store import Model, counters
from hetjax.machine import ROOT, Arrival, MergeOp
from hetjax.runtimes.inline import run_turns_alone
from hetjax.runtimes.mesh.merge_stages import RequestedMerge
from hetjax.runtimes.mesh.mesh_clock import MeshClock
from hetjax.runtimes.mesh.mesh_layout import first_part, on_device
from hetjax.runtimes.mesh.supersteps import Supersteps
from hetjax.strategies.types import Strategy


class MeshPlayer:
    """Plays the tape of one run on a mesh."""

    traits: Traits
    plays: Plays
    run_turns = staticmethod(run_turns_alone)

    def __init__(
        self, strategy: Strategy, job: Job, waves: Supersteps, clock: MeshClock
    ):
        """`clock` tells when a superstep is over."""
        self._job, self._waves, self._clock = job, waves, clock
        self._merges = job.programs.merges_of(strategy)
        self._evaluator = Evaluator(job, None)
        self.look_at_all = self._evaluator.of_all
        self._moved = False  # has a merge changed the root's model?
        self._late: set[int] = set()  # workers that begin after that

    def open(self) -> None:
        """Make the first model, and copy it to all devices."""
        job = self._job
        with job.compilations.of("init"):
            initial = job.programs.init(jax.random.key(job.seed))
        self._like = jax.eval_shape(lambda *model: model, *initial)
        self._waves.launches.begin(initial)
        resets = job.on_nan == "reset"
        self.traits = Traits(
            tree.num_bytes(initial),
            merges_wait=True,
            synchronizes=resets,
            time_map=self._clock.time_map,
        )
        self.plays = {
            tape.BeginReplica: self._begin,
            tape.StartRound: self._start,
            Arrival: lambda arrival: self._waves.finish(arrival.worker),
            tape.MergeReplicas: self._merge,
            tape.EvaluateRoot: lambda e: self._evaluator.look(self),
            tape.Synchronize: lambda settle: self._waves.synchronize(),
        }

    # -- turns -------------------------------------------------------------------------

    def flush(self) -> None:
        """Launch a superstep that is over."""
        if self._clock.superstep_is_over:
            self._waves.complete()
            if self._clock.has_to_know:
                self._waves.wait()

    def close(self) -> list[int]:
        """Wait for what was launched."""
        self._waves.wait()
        return []

    # -- instructions ------------------------------------------------------------------

    def _begin(self, begin: tape.BeginReplica) -> None:
        """All replicas were made with the first model; has the root moved since?"""
        if self._moved:
            self._late.add(begin.worker)

    def _start(self, r: tape.StartRound) -> None:
        """Let a round join the wave that is forming."""
        if r.worker in self._late:
            self._late.remove(r.worker)
            self._waves.begin_late(r.worker)
        self._waves.start(
            Assignment(r.worker, None, r.rows, r.learning_rate, r.first_step)
        )

    def _merge(self, merge: tape.MergeReplicas) -> None:
        """Let a merge join the wave whose arrivals are handled."""
        action = merge.action
        for member in action.members:
            if member in self._late:
                raise ValueError(
                    f"worker {member} takes part in a merge before its first round, "
                    "but others have merged before: on a mesh a worker begins with a "
                    'round; give it one, or take placement="threads"'
                )
        changes = action.node == ROOT and action.op != MergeOp.FETCH
        self._moved = self._moved or changes
        self._waves.ask(RequestedMerge(action, merge.stats))

    def model(self) -> Model:
        """Return the root's current model, on a device of this process."""
        state = first_part(self._waves.root_state())
        merge, programs = self._merges[-1], self._job.programs

        def model(state: Any) -> Model:
            return tree.cast_like(merge.model(on_device(state)), self._like)

        get = programs.once(("mesh model", merge), lambda: jax.jit(model))
        with self._job.compilations.of("evaluate"):
            return get(state)

    def report(self) -> dict[str, float]:
        """Return the counters of the root's merge."""
        merge = self._merges[-1]
        if not merge.report:
            return {}
        return counters(merge, on_device(first_part(self._waves.root_state())))

    # -- saved and resumed -------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the replicas and states of this process's devices."""
        self._waves.synchronize()
        root = on_device(first_part(self._waves.root_state()))
        return {
            "root": Leaves(jax.tree.leaves(root)),
            "mesh": self._waves.launches.save(),
            "late": self._late,
            "moved": self._moved,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self._waves.launches.load(saved["mesh"])
        self._waves.resume()
        self._late, self._moved = saved["late"], saved["moved"]

    def load_root(self, leaves: list[Any]) -> None:
        """Continue from the root's arrays alone."""
        merge, programs = self._merges[-1], self._job.programs
        like = jax.eval_shape(programs.state(merge), *self._like)
        state = tree.filled(like, leaves, "the state of the root")
        model = programs.model(merge)(state, *programs.init(jax.random.key(0)))
        self._waves.launches.begin(model, root=state)

    def model_of(self, leaves: list[Any]) -> Model:
        """Return a model from a saved one's arrays."""
        return self._job.programs.copies(tree.filled(self._like, leaves, "the model"))
