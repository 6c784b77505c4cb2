"""What the float64 oracles take as given, and the books that they keep.

Given are how long things take (`SimulatedClock`), which examples are handed out (the
strategy's sampler) and which are held out. Who gets how many of them when, steps,
merges, momentum, batch sizes and rates are written a second time in the oracles.
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
    """Row numbers in the place of a split."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def take(self, places):
        return Rows(self.rows[places])


class World:
    """A simulated machine, the examples that are handed out, the books of one run."""

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
        self.models = [(0.0, self.start)]  # of the root; visible from that time on
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
        """Of the data that each worker draws from; all alike draw from all of it."""
        share = self._sampler.share
        n = len(self.workers)
        return share(self._rows) if share else np.full(n, 1 / n)

    def eta(self, learning_rate, local_rounds=None):
        """The rate of work that is given now, or after so many finished works."""
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
        """Gives work; returns the rows of each step."""
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
        """The sampler hears what a step lost."""
        if self._sampler.observe:
            losses = np.asarray(losses, np.float32)
            self._rows = self._sampler.observe(self._rows, worker, rows, losses)

    def wait(self):
        """The next worker that reports back; None at the end."""
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
        **order,
    ):
        """The root's `model` is visible when this merge and all before it are done.

        Two transfers of the model, there and back, if there is somebody to send it to.
        `below` are the workers that nodes among the members stand for.
        """
        if transfers is None:
            transfers = 2 if len(members) > 1 else 0
        order = MergeAction(members, node, transfers=transfers, **order)
        transfer = self.clock.merge(order, BYTES * len(self.start), seconds, below)
        if order.op != MergeOp.FETCH:
            self.merges += 1
            if node == ROOT:
                time = max(transfer.finish, self.models[-1][0])
                self.models.append((time, model))
        return transfer

    def visible(self, instant):
        """The root's model as it is seen at an instant."""
        return [w for time, w in self.models if time <= instant][-1]

    def point(self, instant):
        """(updates, examples, loss) at an instant."""
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
    **order,
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
        world.merge(members, compute(batches, eta), seconds=seconds, **order)
