"""A wave: local rounds side by side, the merges after them, and what came of them."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hetjax.data.batching import Bucket
from hetjax.engine.local_steps import LONGEST
from hetjax.engine.player_parts import Assignment
from hetjax.runtimes.mesh.merge_stages import RequestedMerge

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
