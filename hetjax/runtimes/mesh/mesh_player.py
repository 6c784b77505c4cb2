"""The player of a mesh: it collects supersteps and launches them as programs.

Replicas stay on their devices. A round joins the forming superstep; a merge joins the
one whose arrivals are being handled, which is launched when the clock has no more of
its events. So the tape runs ahead of the devices, and results are deferred.
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
from hetjax.runtimes.mesh.superstep_launcher import Supersteps
from hetjax.strategies.types import Strategy


class MeshPlayer:
    """Plays the tape of one run on a mesh."""

    traits: Traits
    plays: Plays
    run_turns = staticmethod(run_turns_alone)

    def __init__(
        self, strategy: Strategy, job: Job, supersteps: Supersteps, clock: MeshClock
    ):
        """`clock` knows when a superstep is over."""
        self._job, self._supersteps, self._clock = job, supersteps, clock
        self._merges = job.programs.merges_of(strategy)
        self.evaluator = Evaluator(job, None)
        self.evaluate_whole_test = self.evaluator.evaluate_whole_test
        self._moved = False  # whether a merge has changed the root's model
        self._from_root: set[int] = set()  # workers that begin afterwards

    def open(self) -> None:
        """Initialize the model, and copy it to all devices."""
        job = self._job
        with job.compilations.of("init"):
            initial = job.programs.init(jax.random.key(job.seed))
        self._like = jax.eval_shape(lambda *model: model, *initial)
        self._supersteps.in_flight.begin(initial)
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
            Arrival: lambda arrival: self._supersteps.finish(arrival.worker),
            tape.MergeReplicas: self._merge,
            tape.EvaluateRoot: lambda e: self.evaluator.evaluate(self),
            tape.Synchronize: lambda instruction: self._supersteps.synchronize(),
        }

    # -- turns -------------------------------------------------------------------------

    def flush(self) -> None:
        """Launch a superstep that is over."""
        if self._clock.superstep_is_over:
            self._supersteps.complete()
            if self._clock.must_wait:
                self._supersteps.wait()

    def close(self) -> list[int]:
        """Wait until all launches are done."""
        self._supersteps.wait()
        return []

    # -- instructions ------------------------------------------------------------------

    def _begin(self, begin: tape.BeginReplica) -> None:
        """Mark the worker if the root has moved since all replicas were created."""
        if self._moved:
            self._from_root.add(begin.worker)

    def _start(self, r: tape.StartRound) -> None:
        if r.worker in self._from_root:
            self._from_root.remove(r.worker)
            self._supersteps.begin_from_root(r.worker)
        self._supersteps.start(
            Assignment(r.worker, None, r.rows, r.learning_rate, r.first_step)
        )

    def _merge(self, merge: tape.MergeReplicas) -> None:
        action = merge.action
        for member in action.members:
            if member in self._from_root:
                raise ValueError(
                    f"worker {member} takes part in a merge before its first round, "
                    "after others have merged; on a mesh a worker must begin with a "
                    'round: dispatch one first, or use placement="threads"'
                )
        changes = action.node == ROOT and action.op != MergeOp.FETCH
        self._moved = self._moved or changes
        self._supersteps.request(RequestedMerge(action, merge.stats))

    def model(self) -> Model:
        """Return the root's current model, on a device of this process."""
        state = first_part(self._supersteps.root_state())
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
        return counters(merge, on_device(first_part(self._supersteps.root_state())))

    # -- saved and resumed -------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the replicas and states of this process's devices."""
        self._supersteps.synchronize()
        root = on_device(first_part(self._supersteps.root_state()))
        return {
            "root": Leaves(jax.tree.leaves(root)),
            "mesh": self._supersteps.in_flight.save(),
            "from_root": self._from_root,
            "moved": self._moved,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Restore what `save` returned."""
        self._supersteps.in_flight.load(saved["mesh"])
        self._supersteps.resume()
        self._from_root, self._moved = saved["from_root"], saved["moved"]

    def load_root(self, leaves: list[Any]) -> None:
        """Restore all replicas from the root's arrays alone."""
        merge, programs = self._merges[-1], self._job.programs
        like = jax.eval_shape(programs.state(merge), *self._like)
        state = tree.filled(like, leaves, "the state of the root")
        model = programs.model(merge)(state, *programs.init(jax.random.key(0)))
        self._supersteps.in_flight.begin(model, root=state)

    def model_of(self, leaves: list[Any]) -> Model:
        """Return the model with these saved arrays."""
        return self._job.programs.copies(tree.filled(self._like, leaves, "the model"))
