"""A wave: local rounds side by side, the merges after them, and what came of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from hetjax.data.batching import Bucket
from hetjax.data.uneven import common_bucket, make_uneven_batches
from hetjax.engine.job import Job
from hetjax.engine.local_steps import LONGEST
from hetjax.engine.protocols import Assignment
from hetjax.runtimes.mesh.merge_stages import RequestedMerge
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.tree import PyTree

Numbers = dict[str, Any]


MOST = 64  # steps of all workers of a device to unroll at most: each is compiled


def may_unroll(most: int, slots: int) -> bool:
    """Are so many steps, of so many workers of a device, few enough to be unrolled?"""
    return most <= LONGEST and slots * most <= MOST


class ControlMessage(NamedTuple):
    """What process 0 says with a launch: whole numbers, which a program carries.

    That it is `interrupted` any process may say.
    """

    seconds: int  # when it was launched, [s] and [us]
    micro: int
    interrupted: int  # did Ctrl-C or SIGTERM come?
    at_once: int  # waves to launch at a time
    due: int = 0  # should the run be kept soon?


class Superstep:
    """The rounds of a wave by worker, and the merges that the policy asked for."""

    def __init__(self, assignments: dict[int, Assignment], bucket: Bucket):
        """`bucket` is the shape of all batches."""
        self.assignments, self.bucket = assignments, bucket
        self.late: frozenset[int] = frozenset()  # they begin from the root's model
        self.most = max((len(a.rows) for a in assignments.values()), default=0)
        self.asked: list[RequestedMerge] = []  # merges that are not launched yet
        self.fresh = True  # are its steps not launched yet?
        self.launched = math.inf  # [s]
        self.numbers: Numbers = {}  # of what is done so far, on the host
        self.known = False  # are its steps done, and their numbers here?

    def add(self, numbers: Numbers, step: int | None) -> None:
        """Add what a program told: of all its steps, of merges, or of one `step`."""
        mine = self.numbers
        if step is not None and mine:  # some workers make no such step
            ran = np.zeros(len(numbers["means"]), bool)
            ran[[k for k, a in self.assignments.items() if len(a.rows) > step]] = True
            numbers["means"] = np.where(ran, numbers["means"], mine["means"])
            if "losses" in numbers:
                both = mine["losses"], numbers["losses"]
                numbers["losses"] = np.concatenate(both, axis=1)
        self.numbers = {**mine, **numbers}

    @property
    def is_launched(self) -> bool:
        """Is there nothing to launch?"""
        return not self.fresh and not self.asked


class DeferredOutcome:
    """The outcome of a local round on a mesh, whose numbers are known later.

    See `hetjax.engine.protocols.RoundResult`.
    """

    def __init__(
        self, wave: Superstep, worker: int, read: Callable[[Superstep], Numbers]
    ):
        """`read` waits for the numbers of a wave."""
        self._wave, self._worker, self._read = wave, worker, read
        rows = wave.assignments[worker].rows
        self.padded = len(rows) * wave.bucket.size - sum(map(len, rows))

    @property
    def known(self) -> bool:
        """Is the wave done, and are its numbers on the host?"""
        return self._wave.known

    @property
    def mean(self) -> float:
        """The mean loss of the last step."""
        return float(self._read(self._wave)["means"][self._worker])

    @property
    def finite(self) -> bool:
        """Are all numbers of the replica finite? If not, the program has reset it."""
        numbers = self._read(self._wave)
        return bool(numbers["finite"][self._worker]) if "finite" in numbers else True

    @property
    def losses(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows and losses of all steps, if the sampler observes them."""
        rows = self._wave.assignments[self._worker].rows
        if rows and self.finite:
            numbers = self._read(self._wave)
            if "losses" in numbers:
                yield np.stack(rows), numbers["losses"][self._worker][: len(rows)]


Steps = tuple[Any, Any, Any]  # batches, numbers, learning rates: [devices, slots, ...]


class Feed:
    """Gathers what the devices of this process need of a wave."""

    def __init__(self, layout: MeshLayout, job: Job):
        """Of one run."""
        self._layout, self._job = layout, job
        # this process's workers, in the order of its devices
        slots = range(layout.workers_per_device)
        self._mine = [
            d * layout.workers_per_device + s for d in layout.local for s in slots
        ]

    def wave(self, assignments: dict[int, Assignment]) -> Superstep:
        """The wave of these rounds."""
        job, chosen = self._job, dict(sorted(assignments.items()))
        bucket = common_bucket(
            job.train,
            [a.rows for a in chosen.values()],
            job.buckets,
            exact=job.programs.exact,
        )
        return Superstep(chosen, bucket)

    def steps(self, wave: Superstep) -> Steps:
        """The inputs of a wave's steps, of this process's devices."""
        found = [wave.assignments.get(k) for k in self._mine]
        rows = [a.rows if a else () for a in found]
        shape = len(self._layout.local), self._layout.workers_per_device
        batches = make_uneven_batches(
            self._job.train, rows, wave.most, wave.bucket, shape
        )
        seed = self._job.seed
        numbers = np.array(
            [
                (len(a.rows), seed, k, a.first_step, k in wave.late)
                if a
                else (0, seed, k, 0, False)
                for k, a in zip(self._mine, found, strict=True)
            ],
            np.uint32,
        ).reshape(*shape, -1)
        rates = np.array([a.learning_rate if a else 0 for a in found], np.float32)
        return batches, numbers, rates.reshape(shape)

    def step(self, steps: Steps, i: int) -> Steps:
        """The inputs of step i alone, of the inputs of a wave's steps."""
        batches, numbers, rates = steps
        only = numbers.copy()
        only[..., 0] = numbers[..., 0] > i
        only[..., 3] = numbers[..., 3] + i
        return jax.tree.map(lambda x: x[:, :, i : i + 1], batches), only, rates

    def held_out(self) -> Any:
        """The held-out batches [n, ...] and their examples; () without any."""
        job = self._job
        if not job.held_out:
            return ()
        stacked = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *job.held_out
        )
        return self._layout.everyone((stacked, np.float32(job.num_held_out)))


LARGE = 2**15  # bytes of a leaf that is sent by itself


class Packing(NamedTuple):
    """How a tree was packed; static, so that a program can unpack it."""

    structure: Any
    # of each leaf: its shape behind [devices, waves] and its dtype, if it was packed
    leaves: tuple[tuple[tuple[int, ...], np.dtype] | None, ...]


class Packed(NamedTuple):
    """A packed tree: leaves [devices, waves, ...]."""

    words: Any  # [devices, waves, n] uint32
    large: tuple[Any, ...]


def pack(trees: Sequence[PyTree], devices: int) -> tuple[Packed, Packing]:
    """Pack the trees of several waves, with leaves [devices, ...] on the host."""
    columns = [jax.tree.leaves(tree) for tree in trees]
    structure = jax.tree.structure(trees[0])
    large, about, small = [], [], []
    size = 1  # never empty: a program has to know the number of waves
    for of_waves in zip(*columns, strict=True):
        first = of_waves[0]
        if first.nbytes <= LARGE and _fits(first.dtype):
            about.append((first.shape[1:], first.dtype))
            small.append((size, of_waves))
            size += first.size // devices
        else:
            about.append(None)
            one = len(of_waves) == 1
            large.append(first[:, None] if one else np.stack(of_waves, axis=1))
    buffer = np.zeros((devices, len(trees), size), np.uint32)
    for start, of_waves in small:
        end = start + of_waves[0].size // devices
        for wave, leaf in enumerate(of_waves):
            buffer[:, wave, start:end] = _as_words(leaf).reshape(devices, -1)
    return Packed(buffer, tuple(large)), Packing(structure, tuple(about))


def unpack(packed: Packed, packing: Packing) -> PyTree:
    """Inside a program: the tree of one wave and device, with leaves [...]."""
    large, start = iter(packed.large), 1
    leaves = []
    for about in packing.leaves:
        if about is None:
            leaves.append(next(large))
            continue
        shape, dtype = about
        end = start + math.prod(shape)
        leaf = packed.words[start:end].reshape(shape)
        if dtype == np.bool_:
            leaf = leaf != 0
        elif dtype.itemsize == 4:
            leaf = lax.bitcast_convert_type(leaf, dtype)
        else:
            leaf = leaf.astype(dtype)
        leaves.append(leaf)
        start = end
    return jax.tree.unflatten(packing.structure, leaves)


def _fits(dtype: np.dtype) -> bool:
    """Does a number of this type fit into a word, and come back as it was?"""
    return dtype.itemsize == 4 or (dtype.itemsize == 1 and dtype.kind in "biu")


def _as_words(leaf: np.ndarray) -> np.ndarray:
    """The bits of numbers of four bytes; smaller integers as such."""
    if leaf.dtype.itemsize != 4:
        return leaf.astype(np.uint32)
    return np.ascontiguousarray(leaf).view(np.uint32)
