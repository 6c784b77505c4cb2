"""What is launched on the devices of a mesh: programs one after the other.

They change the replicas and the states of all nodes. A few may be in flight; what they
tell (losses, whether a replica is finite, process 0's word) is read when they are done.
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
from hetjax.runtimes.mesh.merge_stages import Algorithm
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.mesh_programs import (
    Spec,
    SuperstepInputs,
    begin_program,
    wave_program,
)
from hetjax.runtimes.mesh.superstep import ControlMessage, Numbers, Superstep, pack


class Launch(NamedTuple):
    """Waves that run as one program, or whose last program runs."""

    waves: tuple[Superstep, ...]
    numbers: Numbers  # on the devices, of each wave: [waves, ...]
    step: int | None  # the only step that it makes, if more follow


class ProgramsInFlight:
    """The programs of one run, and the replicas and states that they change."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: MeshLayout,
        job: Job,
        held_out: Any,
        *,
        ahead: int,
        explain: Callable[[Exception], Exception],
    ):
        """`ahead` launches may wait behind the one that runs.

        `held_out` is on the devices. `explain` returns the true reason of an error that
        a collective raised.
        """
        self._algorithm, self._layout, self._job = algorithm, layout, job
        self._held_out, self._ahead, self._explain = held_out, ahead, explain
        self._in_flight: deque[Launch] = deque()
        self._compiled: set[Any] = set()
        self._replicas: Any = None
        self._states: Any = None
        self.failed = False  # has a program failed? Then nothing runs any more
        # these are the clock's
        self.seconds: Callable[[], float] = lambda: 0.0
        self.paused: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.on_done: Callable[[tuple[Superstep, ...], float, Any], None] = lambda *_: (
            None
        )
        self.word: Callable[[], ControlMessage] = lambda: ControlMessage(
            0, 0, 0, at_once=1
        )

    def begin(self, model: tuple[Any, Any], root: Any = None) -> None:
        """Make all replicas and states from a model; `root` is the root's state.

        By default it is a new one, too.
        """
        layout, programs = self._layout, self._job.programs
        key = ("mesh begin", self._algorithm, layout)
        begin = programs.once(key, lambda: begin_program(self._algorithm, layout))
        with self._job.compilations.of("init"):
            self._replicas, self._states = begin(*layout.everyone(model))
            if root is not None:
                devices = len(layout.local)
                copies = jax.tree.map(lambda x: np.stack([x] * devices), root)
                own = programs.copies(layout.split_local(copies))
                self._states = {**self._states, self._algorithm.root: own}

    def save(self) -> list[np.ndarray]:
        """Return all replicas and states of this process's devices: [local, ...]."""
        self.wait()
        return [
            _local_parts(x) for x in jax.tree.leaves((self._replicas, self._states))
        ]

    def load(self, leaves: list[np.ndarray]) -> None:
        """Continue from what `save` returned; a ValueError if the shapes differ."""
        before, structure = jax.tree.flatten((self._replicas, self._states))
        devices = len(self._layout.local)
        expected = [((devices, *x.shape[1:]), x.dtype) for x in before]
        if expected != [(x.shape, x.dtype) for x in leaves]:
            raise ValueError(
                "the checkpoint has replicas of another mesh: give as many devices to "
                "each process as before"
            )
        found = self._layout.split_local(jax.tree.unflatten(structure, leaves))
        self._replicas, self._states = self._job.programs.copies(found)

    def root_state(self) -> Any:
        """The root's state after all that was launched, [1, ...] on a local device."""
        self.wait()
        return self._states[self._algorithm.root]

    def spoken(self) -> Any:
        """The word of process 0, as the input of its first device; () if alone.

        Other processes only say whether they were interrupted.
        """
        layout = self._layout
        if layout.is_alone:
            return ()
        self._make_room()  # so that the stamp is that of the launch
        words = np.zeros((len(layout.local), len(ControlMessage._fields)), np.int32)
        own = self.word()
        is_first = layout.local[0] == 0
        words[0] = own if is_first else ControlMessage(0, 0, own.interrupted, 0)
        return words

    def run(
        self,
        waves: tuple[Superstep, ...],
        spec: Spec,
        inputs: Sequence[SuperstepInputs],
        step: int | None = None,
    ) -> None:
        """Launch a program when there is room; `inputs` are those of each wave.

        A new program is compiled before, while the clock stands.
        """
        programs, compilations = self._job.programs, self._job.compilations
        packed, packing = pack(inputs, len(self._layout.local))
        key = ("mesh wave", self._algorithm, spec, packing)
        make = partial(wave_program, self._algorithm, spec, packing)
        program = programs.once(key, make)
        sent = self._layout.put_local(packed)
        self._make_room()
        shapes = (key, *(x.shape for x in jax.tree.leaves(packed)))
        arguments = (self._replicas, self._states, sent, self._held_out)
        purpose = "step" if spec.steps else "merge"
        if shapes not in self._compiled:
            self.wait()  # what runs meanwhile would not be measured
            with self.paused(), compilations.of(purpose):
                program.lower(*arguments).compile()
            self._compiled.add(shapes)
        for wave in waves:
            wave.launched = min(wave.launched, self.seconds())
        with self._watched(), compilations.of(purpose):
            self._replicas, self._states, numbers = program(*arguments)
        self._in_flight.append(Launch(waves, numbers, step))

    def wait(self) -> None:
        """Wait until everything launched is done."""
        while self._in_flight and not self.failed:
            self.finish()

    def _make_room(self) -> None:
        """Wait until no more launches are in flight than may be."""
        while len(self._in_flight) > self._ahead:
            self.finish()

    def finish(self) -> None:
        """Wait for the oldest launch; keep its numbers on the host."""
        launch = self._in_flight.popleft()
        with self._watched():
            found = jax.tree.map(_on_host, launch.numbers)
            if not self._in_flight:
                jax.block_until_ready(self._states)
        stepped = tuple(wave for wave in launch.waves if not wave.known)
        for i, wave in enumerate(launch.waves):
            own = jax.tree.map(lambda x, i=i: x[i], found)
            for accuracy in own.pop("accuracy"):
                metric = self._job.programs.task.metric
                check_weights(self._job.name, metric, accuracy.min())
            wave.add(own, launch.step)
            wave.known = launch.step is None
        if launch.step is None:
            word = (
                ControlMessage(*found["word"][0].tolist()) if "word" in found else None
            )
            self.on_done(stepped, self.seconds(), word)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """If a program fails, nothing runs any more; say which process died, if any.

        What a failed collective leaves raises a ValueError where it is used.
        """
        try:
            yield
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            self.failed = True
            if (reason := self._explain(error)) is error:
                raise
            raise reason from error


def _local_parts(x: jax.Array) -> np.ndarray:
    """The parts of an array [devices, ...] on this process's devices, in order."""
    parts = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
    return np.concatenate([np.asarray(part.data) for part in parts])


def _on_host(x: jax.Array) -> np.ndarray:
    """An array that is the same on all devices."""
    return np.asarray(x.addressable_shards[0].data)
