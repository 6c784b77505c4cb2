"""What the float64 oracles take as given, and the records that they keep.

They take as given all durations (`SimulatedClock`), the examples that are drawn (by the
strategy's sampler) and those held out. The oracles implement everything else a second
time: rounds, steps, merges, momentum, batch sizes and learning rates.
"""

import numpy as np

from hetjax.data.held_out import split_off
from hetjax.machine import (
    ROOT,
    Arrival,
    LocalRound,
    MergeAction,
    MergeOp,
    SimulatedClock,
)
from hetjax.sampling import uniform
from hetjax.schedule import LearningRate

BYTES = 4  # of a float32


class Rows:
    """Row numbers in place of a split."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def take(self, places):
        return Rows(self.rows[places])


class World:
    """A simulated machine, the examples that are drawn, and the records of one run."""

    def __init__(
        self, problem, machine, *, seed, seconds, sampler=None, held_out=False
    ):
        self.problem, self.gradient = problem, problem.gradient
        self.clock = SimulatedClock(machine, seed=seed)
        self.end = seconds
        self.start = problem.initial(seed)
        rest = Rows(np.arange(len(problem.data.train)))
        if held_out:
            rest, held = split_off(rest, seed)
            self.held_out = held.rows
        self._usable = rest.rows
        self._sampler = sampler or uniform()
        self._rows = self._sampler.init(self.clock.workers, len(rest), seed)
        self.finished = []  # (time, worker, updates, examples)
        self.models = [(0.0, self.start)]  # the root's, visible from that time on
        self.merges = 0  # at any node
        self.sizes = [[] for _ in machine.workers]  # (time, size) where it changed

    @property
    def workers(self):
        return range(len(self.clock.workers))

    @property
    def now(self):
        return self.clock.now

    @property
    def shares(self):
        """The shares of the data that workers draw from; by default equal shares."""
        share = self._sampler.share
        n = len(self.workers)
        return share(self._rows) if share else np.full(n, 1 / n)

    def eta(self, learning_rate, local_rounds=None):
        """The learning rate of a round now, or after this many finished rounds."""
        if callable(learning_rate):
            learning_rate = LearningRate(learning_rate, over="examples")
        if not isinstance(learning_rate, LearningRate):
            return learning_rate
        done = self.finished[:local_rounds]
        updates, examples = (sum(f[i] for f in done) for i in (2, 3))
        at = {"updates": updates, "examples": examples, "seconds": self.now}
        at["epochs"] = examples / len(self._usable)
        return learning_rate.schedule(at[learning_rate.over])

    def dispatch(self, worker, local_steps, size, seconds=0.0):
        """Give a worker a local round; return the rows of each step."""
        n = max(1, round(size))
        batches = []
        for _ in range(local_steps):
            self._rows, rows = self._sampler.draw(self._rows, worker, n)
            batches.append(self._usable[rows])
        local_round = LocalRound(local_steps, size, seconds=seconds)
        arrival = self.clock.dispatch(worker, local_round, (0,) * local_steps)
        if local_steps and (
            not self.sizes[worker] or self.sizes[worker][-1][1] != size
        ):
            self.sizes[worker].append((arrival.start, size))
        return batches

    def observe(self, worker, rows, losses):
        """Tell the sampler the losses of a step."""
        if self._sampler.observe:
            losses = np.asarray(losses, np.float32)
            self._rows = self._sampler.observe(self._rows, worker, rows, losses)

    def wait(self):
        """The next worker that arrives; None at the end."""
        while (event := self.clock.next()) and event.time <= self.end:
            if isinstance(event, Arrival):
                local_round = event.local_round
                n = local_round.local_steps * max(1, round(local_round.batch_size))
                self.finished.append(
                    (event.time, event.worker, local_round.local_steps, n)
                )
                return event.worker
        return None

    def merge(
        self,
        members,
        model,
        *,
        node=ROOT,
        transfers=None,
        seconds=0.0,
        below=(),
        **fields,
    ):
        """Merge; the root's `model` is visible once this and earlier merges are done.

        There are two transfers of the model, there and back, if there are several
        members. `below` are the workers below those members that are nodes.
        """
        if transfers is None:
            transfers = 2 if len(members) > 1 else 0
        action = MergeAction(members, node, transfers=transfers, **fields)
        transfer = self.clock.merge(action, BYTES * len(self.start), seconds, below)
        if action.op != MergeOp.FETCH:
            self.merges += 1
            if node == ROOT:
                time = max(transfer.finish, self.models[-1][0])
                self.models.append((time, model))
        return transfer

    def visible(self, instant):
        """The root's model that is visible at a time."""
        return [w for time, w in self.models if time <= instant][-1]

    def point(self, instant):
        """(updates, examples, loss) at a time."""
        done = [f for f in self.finished if f[0] <= instant]
        updates, examples = (sum(f[i] for f in done) for i in (2, 3))
        return updates, examples, self.problem.loss(self.visible(instant))

    def updates(self, worker):
        return sum(updates for _, k, updates, _ in self.finished if k == worker)


def bulk_synchronous(
    world,
    members,
    local_steps,
    size,
    compute,
    *,
    learning_rate=0.0,
    seconds=0.0,
    **fields,
):
    """Rounds; `compute({worker: [rows of each step]}, eta)` returns the merged model.

    `local_steps` is one number or one for each worker; the merge takes `seconds` more.
    """
    local_steps = (
        dict.fromkeys(members, local_steps)
        if isinstance(local_steps, int)
        else local_steps
    )
    while True:
        eta = world.eta(learning_rate)
        batches = {k: world.dispatch(k, local_steps[k], size) for k in members}
        for _ in members:
            if world.wait() is None:
                return
        world.merge(members, compute(batches, eta), seconds=seconds, **fields)
