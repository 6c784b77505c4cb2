"""A superstep: concurrent local rounds and the merges after them.

`Superstep` and `DeferredOutcome` hold its rounds and results on the host, `Feed`
gathers the inputs of its steps, and `pack` turns many small inputs into one array.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from hetjax.data.batching import Bucket
from hetjax.data.uneven import common_bucket, make_uneven_batches
from hetjax.engine.device_data import fits, rows_on
from hetjax.engine.job import Job
from hetjax.engine.placement import is_host
from hetjax.engine.player_parts import Assignment
from hetjax.engine.programs.local_round import RowBatches
from hetjax.engine.step_runner import LONGEST
from hetjax.runtimes.mesh.merge_stages import RequestedMerge
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.tree import PyTree

Numbers = dict[str, Any]  # results of a program, by name
# batches or the rows of batches, numbers, learning rates: [devices, workers of a
# device, ...]
Steps = tuple[Any, Any, Any]

MAX_UNROLLED = 64  # unrolled steps of all workers of a device; each is compiled
LARGE_LEAF = 2**15  # bytes; larger leaves are sent by themselves


def may_unroll(max_steps: int, workers_per_device: int) -> bool:
    """Whether the steps of a device's workers are few enough to be unrolled."""
    return max_steps <= LONGEST and workers_per_device * max_steps <= MAX_UNROLLED


class ControlMessage(NamedTuple):
    """The integers that process 0 broadcasts with a launch, within its program.

    Any process may set `interrupted`.
    """

    seconds: int  # launch time, [s] and [us]
    microseconds: int
    interrupted: int  # whether Ctrl-C or SIGTERM was received
    per_launch: int  # number of supersteps per launch
    due: int = 0  # whether a snapshot is due


class Superstep:
    """The rounds of a superstep by worker, and the merges that the policy requested."""

    def __init__(self, assignments: dict[int, Assignment], bucket: Bucket):
        """`bucket` is the shape of all batches."""
        self.assignments, self.bucket = assignments, bucket
        self.from_root: frozenset[int] = frozenset()  # workers that begin from it
        self.max_steps = max((len(a.rows) for a in assignments.values()), default=0)
        self.requested: list[RequestedMerge] = []  # merges not yet launched
        self.fresh = True  # whether its steps are not yet launched
        self.launched = math.inf  # launch time [s]
        self.numbers: Numbers = {}  # results so far, on the host
        self.known = False  # whether its steps are done, with numbers on the host

    def add(self, numbers: Numbers, step: int | None) -> None:
        """Add the results of a program: of all steps, of merges, or of one `step`."""
        mine = self.numbers
        if step is not None and mine:  # some workers do not make this step
            ran = np.zeros(len(numbers["means"]), bool)
            ran[[k for k, a in self.assignments.items() if len(a.rows) > step]] = True
            numbers["means"] = np.where(ran, numbers["means"], mine["means"])
            if "losses" in numbers:
                both = mine["losses"], numbers["losses"]
                numbers["losses"] = np.concatenate(both, axis=1)
        self.numbers = {**mine, **numbers}

    @property
    def is_launched(self) -> bool:
        """Whether nothing is left to launch."""
        return not self.fresh and not self.requested


class DeferredOutcome:
    """The outcome of a local round on a mesh, with numbers that are known later.

    See `hetjax.engine.protocols.RoundResult`.
    """

    def __init__(
        self, superstep: Superstep, worker: int, read: Callable[[Superstep], Numbers]
    ):
        """`read` waits for the numbers of a superstep."""
        self._superstep, self._worker, self._read = superstep, worker, read
        rows = superstep.assignments[worker].rows
        self.padded = len(rows) * superstep.bucket.size - sum(map(len, rows))

    @property
    def known(self) -> bool:
        """Whether the superstep is done and its numbers are on the host."""
        return self._superstep.known

    @property
    def mean(self) -> float:
        """The mean loss of the last step."""
        return float(self._read(self._superstep)["means"][self._worker])

    @property
    def finite(self) -> bool:
        """Whether the replica is finite; if not, the program has reset it."""
        numbers = self._read(self._superstep)
        return bool(numbers["finite"][self._worker]) if "finite" in numbers else True

    @property
    def losses(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows and losses of all steps, if the sampler observes them."""
        rows = self._superstep.assignments[self._worker].rows
        if rows and self.finite:
            numbers = self._read(self._superstep)
            if "losses" in numbers:
                yield np.stack(rows), numbers["losses"][self._worker][: len(rows)]


# -- inputs ----------------------------------------------------------------------------


class Feed:
    """Gathers the inputs of supersteps for the devices of this process."""

    def __init__(self, layout: MeshLayout, job: Job):
        """Create the feed of one run.

        Devices other than CPUs have the training data, if they fit, and gather their
        batches themselves.
        """
        self._layout, self._job = layout, job
        device, self._rows = layout.devices[layout.local[0]], None
        if layout.is_single_process and not is_host(device) and fits(job.train, device):
            self._rows = rows_on(job, layout.replicated)
        # this process's workers, in the order of its devices
        n = layout.workers_per_device
        self._mine = [d * n + i for d in layout.local for i in range(n)]

    @property
    def data(self) -> Any:
        """The training data on the devices; () if batches are sent."""
        return () if self._rows is None else self._rows.arrays

    def gathered(self, superstep: Superstep) -> RowBatches | None:
        """Return how a program gathers its batches; None if they are sent."""
        rows = self._rows
        return rows and RowBatches(rows.batch_maker, superstep.bucket)

    def superstep(self, assignments: dict[int, Assignment]) -> Superstep:
        """Return the superstep of these rounds."""
        job, chosen = self._job, dict(sorted(assignments.items()))
        bucket = common_bucket(
            job.train,
            [a.rows for a in chosen.values()],
            job.buckets,
            exact=job.programs.exact,
        )
        return Superstep(chosen, bucket)

    def steps(self, superstep: Superstep) -> Steps:
        """Return the inputs of a superstep's steps on this process's devices."""
        found = [superstep.assignments.get(k) for k in self._mine]
        rows = [a.rows if a else () for a in found]
        shape = len(self._layout.local), self._layout.workers_per_device
        if self._rows is None:
            batches = make_uneven_batches(
                self._job.train, rows, superstep.max_steps, superstep.bucket, shape
            )
        else:
            batches = self._row_numbers(rows, superstep)
            batches = batches.reshape(*shape, *batches.shape[1:])
        seed = self._job.seed
        numbers = np.array(
            [
                (
                    *(len(a.rows), seed, k, a.first_step),
                    *(max(map(len, a.rows), default=1), k in superstep.from_root),
                )
                if a
                else (0, seed, k, 0, 1, False)
                for k, a in zip(self._mine, found, strict=True)
            ],
            np.uint32,
        ).reshape(*shape, -1)
        rates = np.array([a.learning_rate if a else 0 for a in found], np.float32)
        return batches, numbers, rates.reshape(shape)

    def _row_numbers(
        self, rows: Sequence[Sequence[np.ndarray]], superstep: Superstep
    ) -> np.ndarray:
        """Return the rows of all batches, [workers, steps, size]."""
        assert self._rows is not None
        size, most = superstep.bucket.size, superstep.max_steps
        table = np.zeros((len(rows), most, size), np.int32)
        for k, own in enumerate(rows):
            if len(own):
                table[k, : len(own)] = self._rows.stacked(own, size)
        return table

    def step(self, steps: Steps, i: int) -> Steps:
        """Return the inputs of step i alone, selected from those of all steps."""
        batches, numbers, rates = steps
        only = numbers.copy()
        only[..., 0] = numbers[..., 0] > i
        only[..., 3] = numbers[..., 3] + i
        return jax.tree.map(lambda x: x[:, :, i : i + 1], batches), only, rates

    def held_out(self) -> Any:
        """Return the held-out batches [n, ...] and their number of examples, or ()."""
        job = self._job
        if not job.held_out:
            return ()
        stacked = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *job.held_out
        )
        return self._layout.replicate((stacked, np.float32(job.num_held_out)))


# -- packing ---------------------------------------------------------------------------
# Sending an array costs the host 50 to 100 us, however small it is. So leaves of 4-byte
# numbers and flags go side by side into one buffer of 32-bit words; large leaves are
# sent as they are.


class Packing(NamedTuple):
    """How a tree was packed; static, so that a program can unpack it."""

    structure: Any
    # of each leaf: its shape after [devices, supersteps], and dtype; None: not packed
    leaves: tuple[tuple[tuple[int, ...], np.dtype] | None, ...]


class Packed(NamedTuple):
    """A packed tree, with leaves [devices, supersteps, ...]."""

    words: Any  # [devices, supersteps, n] uint32
    large: tuple[Any, ...]


def pack(trees: Sequence[PyTree], devices: int) -> tuple[Packed, Packing]:
    """Pack the trees of several supersteps, with leaves [devices, ...] on the host."""
    columns = [jax.tree.leaves(tree) for tree in trees]
    structure = jax.tree.structure(trees[0])
    large, about, small = [], [], []
    size = 1  # never empty: a program reads the number of supersteps off its shape
    for leaves in zip(*columns, strict=True):
        first = leaves[0]
        if first.nbytes <= LARGE_LEAF and _fits(first.dtype):
            about.append((first.shape[1:], first.dtype))
            small.append((size, leaves))
            size += first.size // devices
        else:
            about.append(None)
            one = len(leaves) == 1
            large.append(first[:, None] if one else np.stack(leaves, axis=1))
    buffer = np.zeros((devices, len(trees), size), np.uint32)
    for start, leaves in small:
        end = start + leaves[0].size // devices
        for i, leaf in enumerate(leaves):
            buffer[:, i, start:end] = _as_words(leaf).reshape(devices, -1)
    return Packed(buffer, tuple(large)), Packing(structure, tuple(about))


def unpack(packed: Packed, packing: Packing) -> PyTree:
    """Inside a program: return the tree of one superstep and device."""
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
    """Whether conversion to a word and back preserves numbers of this type."""
    return dtype.itemsize == 4 or (dtype.itemsize == 1 and dtype.kind in "biu")


def _as_words(leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype.itemsize != 4:
        return leaf.astype(np.uint32)
    return np.ascontiguousarray(leaf).view(np.uint32)
