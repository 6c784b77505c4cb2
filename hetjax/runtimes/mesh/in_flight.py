"""The programs in flight on the devices of a mesh, launched one after the other.

They update the replicas and the states of all nodes. A few may be in flight; their
results (losses, whether replicas are finite, process 0's control message) are read when
they are done.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.engine.evaluation import check_weights
from hetjax.engine.job import Job
from hetjax.processes.lifecycle import blame
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.mesh_programs import (
    Spec,
    SuperstepInputs,
    begin_program,
    superstep_program,
)
from hetjax.runtimes.mesh.stage_program import Algorithm
from hetjax.runtimes.mesh.superstep import ControlMessage, Numbers, Superstep, pack


class Launch(NamedTuple):
    """Supersteps that run as one program, or whose last program runs."""

    supersteps: tuple[Superstep, ...]
    numbers: Numbers  # on the devices, [supersteps, ...]
    step: int | None  # its only step, if more programs follow; else None


class ProgramsInFlight:
    """The programs of one run, and the replicas and states that they update."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: MeshLayout,
        job: Job,
        fixed: tuple[Any, Any],
        *,
        ahead: int,
    ):
        """Up to `ahead` launches may queue behind the running one.

        The held-out and the training data that are `fixed` are on the devices.
        """
        self._algorithm, self._layout, self._job = algorithm, layout, job
        self._fixed, self._ahead = fixed, ahead
        self._in_flight: deque[Launch] = deque()
        self._compiled: set[Any] = set()
        self._replicas: Any = None
        self._states: Any = None
        self.failed = False  # whether a program has failed; then no more are run
        # the clock sets these
        self.seconds: Callable[[], float] = lambda: 0.0
        self.paused: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.on_done: Callable[[tuple[Superstep, ...], float, Any], None] = lambda *_: (
            None
        )
        self.control_message: Callable[[], ControlMessage] = lambda: ControlMessage(
            0, 0, 0, per_launch=1
        )

    def begin(self, model: tuple[Any, Any], root: Any = None) -> None:
        """Create all replicas and states from a model; `root` is the root's state.

        By default, the root's state is also new.
        """
        layout, programs = self._layout, self._job.programs
        key = ("mesh begin", self._algorithm, layout)
        begin = programs.once(key, lambda: begin_program(self._algorithm, layout))
        with self._job.compilations.of("init"):
            self._replicas, self._states = begin(*layout.replicate(model))
            if root is not None:
                devices = len(layout.local)
                copies = jax.tree.map(lambda x: np.stack([x] * devices), root)
                own = programs.copies(layout.shard_local(copies))
                self._states = {**self._states, self._algorithm.root: own}

    def save(self) -> list[np.ndarray]:
        """Return all replicas and states of this process's devices: [local, ...]."""
        self.wait()
        return [
            _local_shards(x) for x in jax.tree.leaves((self._replicas, self._states))
        ]

    def load(self, leaves: list[np.ndarray]) -> None:
        """Restore what `save` returned; raise a ValueError if the shapes differ."""
        before, structure = jax.tree.flatten((self._replicas, self._states))
        devices = len(self._layout.local)
        expected = [((devices, *x.shape[1:]), x.dtype) for x in before]
        if expected != [(x.shape, x.dtype) for x in leaves]:
            raise ValueError(
                "the checkpoint has replicas of another mesh: start each process with "
                "the number of devices that it had"
            )
        found = self._layout.shard_local(jax.tree.unflatten(structure, leaves))
        self._replicas, self._states = self._job.programs.copies(found)

    def root_state(self) -> Any:
        """The root's state after all launches, [1, ...] on a local device."""
        self.wait()
        return self._states[self._algorithm.root]

    def outgoing_message(self) -> Any:
        """The control message as an input of the first device; () if single-process.

        Processes other than process 0 only send whether they were interrupted.
        """
        layout = self._layout
        if layout.is_single_process:
            return ()
        self._make_room()  # so that the message has the time of the launch
        message = np.zeros((len(layout.local), len(ControlMessage._fields)), np.int32)
        own = self.control_message()
        is_first = layout.local[0] == 0
        message[0] = own if is_first else ControlMessage(0, 0, own.interrupted, 0)
        return message

    def run(
        self,
        supersteps: tuple[Superstep, ...],
        spec: Spec,
        inputs: Sequence[SuperstepInputs],
        step: int | None = None,
    ) -> None:
        """Launch a program when there is room; `inputs` has one entry per superstep.

        A new program is compiled first, with the clock paused.
        """
        programs, compilations = self._job.programs, self._job.compilations
        packed, packing = pack(inputs, len(self._layout.local))
        key = ("mesh superstep", self._algorithm, spec, packing)
        make = partial(superstep_program, self._algorithm, spec, packing)
        program = programs.once(key, make)
        sent = self._layout.put_local(packed)
        self._make_room()
        shapes = (key, *(x.shape for x in jax.tree.leaves(packed)))
        arguments = (self._replicas, self._states, sent, *self._fixed)
        purpose = "step" if spec.steps else "merge"
        if shapes not in self._compiled:
            self.wait()  # programs that run meanwhile could not be timed
            with self.paused(), compilations.of(purpose):
                program.lower(*arguments).compile()
            self._compiled.add(shapes)
        for superstep in supersteps:
            superstep.launched = min(superstep.launched, self.seconds())
        with self._watched(), compilations.of(purpose):
            self._replicas, self._states, numbers = program(*arguments)
        self._in_flight.append(Launch(supersteps, numbers, step))

    def wait(self) -> None:
        """Wait until all launches are done."""
        while self._in_flight and not self.failed:
            self.finish()

    def _make_room(self) -> None:
        while len(self._in_flight) > self._ahead:
            self.finish()

    def finish(self) -> None:
        """Wait for the oldest launch, and copy its numbers to the host."""
        launch = self._in_flight.popleft()
        with self._watched():
            found = jax.tree.map(_on_host, launch.numbers)
            if not self._in_flight:
                jax.block_until_ready(self._states)
        stepped = tuple(s for s in launch.supersteps if not s.known)
        for i, superstep in enumerate(launch.supersteps):
            own = jax.tree.map(lambda x, i=i: x[i], found)
            for accuracy in own.pop("accuracy"):
                metric = self._job.programs.task.metric
                check_weights(self._job.name, metric, accuracy.min())
            superstep.add(own, launch.step)
            superstep.known = launch.step is None
        if launch.step is None:
            message = None
            if "message" in found:
                message = ControlMessage(*found["message"][0].tolist())
            self.on_done(stepped, self.seconds(), message)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """If a program fails, stop launching; say so if a process may have died.

        The results of a failed collective raise a ValueError where they are used.
        """
        try:
            yield
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            self.failed = True
            if (reason := blame(error)) is error:
                raise
            raise reason from error


def _local_shards(x: jax.Array) -> np.ndarray:
    """The shards of an array [devices, ...] on this process's devices, in order."""
    shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def _on_host(x: jax.Array) -> np.ndarray:
    return np.asarray(x.addressable_shards[0].data)
