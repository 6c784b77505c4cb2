"""What a policy decides, carried out with NumPy on two numbers.

The model is (x, y), and worker i's t-th gradient at it is (x, y) - a_i[t mod 2]. Merges
are a few lines each, so that a policy's sequence of operations can be compared with
results that were worked out from the papers.
"""

import itertools

import numpy as np
from policy_driver import machine

from hetjax.engine.decisions import decisions
from hetjax.machine import Arrival, MergeOp, SimulatedClock

START = np.array([1.0, -1.0])
TARGETS = np.array([[[2, 0], [0, 1]], [[-1, 1], [1, -2]], [[0.5, 0.5], [-2, 0]]])
RATE = 0.5


class Pushed:
    """A server that changes at every push; subclasses add sums."""

    def __init__(self):
        self.center, self.version = START.copy(), 0

    def push(self, k, difference, staleness):
        """The model of worker k minus what it was given is -difference."""
        self.center = self.center - difference

    def accumulate(self, k, difference, staleness, applies):
        raise NotImplementedError

    def apply(self):
        raise NotImplementedError


def momentum(rate=0.7, share=0.9, scale=1.0):
    """An outer step of Nesterov's momentum at each push."""

    class Momentum(Pushed):
        buffer = np.zeros(2)

        def push(self, k, difference, staleness):
            self.buffer = share * self.buffer + scale * difference
            step = scale * difference + share * self.buffer
            self.center = self.center - rate * step

    return Momentum()


class Run:
    """The state after the reports of `play`."""

    def __init__(self, server, policy, seconds, moves):
        self.server, self.moves = server, moves
        self.given = [START.copy() for _ in seconds]  # the model that each was given
        self.models = [START.copy() for _ in seconds]
        self.versions, self.draws = [0] * len(seconds), [0] * len(seconds)
        self.reports, self.staleness, self.actions = [], [], []
        clock = SimulatedClock(machine(*map(float, seconds)), seed=0)
        self.tape = decisions(policy, clock, num_examples=1000)

    def until(self, reports):
        for event, actions in self.tape:
            self.carry_out(event, actions)
            if len(self.reports) == reports:
                return self
        raise AssertionError("a deadlock")

    def carry_out(self, event, actions):
        self.actions.append((event, actions))
        if isinstance(event, Arrival):
            self.reports.append(f"{event.time:g}/{event.worker}")
        for k in actions.cancel:
            self.models[k] = self.given[k].copy()
        for merge in actions.merges:
            self.merge_all(merge)
        for k, local_round in actions.dispatch:
            self.compute(k, local_round)

    def merge_all(self, merge):
        for k in merge.members:
            self.merge(k, merge.op)
        if MergeOp.APPLY in merge.op and not merge.members:
            self.apply()

    def merge(self, k, op):
        server = self.server
        staleness = server.version - self.versions[k]
        difference = self.given[k] - self.models[k]
        if MergeOp.PUSH in op:
            self.staleness.append(staleness)
            server.push(k, difference, staleness)
            server.version += 1
        if MergeOp.ACCUMULATE in op:
            self.staleness.append(staleness)
            server.accumulate(k, difference, staleness, MergeOp.APPLY in op)
        if MergeOp.APPLY in op:
            self.apply()
        if MergeOp.FETCH in op:
            self.given[k] = server.center.copy()
            self.models[k], self.versions[k] = server.center.copy(), server.version

    def apply(self):
        self.server.apply()
        self.server.version += 1

    def compute(self, k, local_round):
        """The steps of a round; its draws are used up even if it is cancelled."""
        if not self.moves:  # gradients are computed at the model that was given
            self.models[k] = self.given[k].copy()
        for _ in range(local_round.local_steps):
            target = TARGETS[k % 3][self.draws[k] % 2]
            step = RATE * local_round.lr_scale * (self.models[k] - target)
            self.models[k] = self.models[k] - step
            self.draws[k] += 1


def play(policy, server, reports=6, seconds=(2, 3, 7), moves=False):
    """The run of a policy on workers whose steps take these seconds."""
    return Run(server, policy, seconds, moves).until(reports)


class FragmentsRun(Run):
    """Part "0" is x and part "1" y; the mean of a push makes a step of momentum."""

    rate, share, workers_share = 0.7, 0.9, 0.0

    def __init__(self, policy, seconds, workers_share):
        super().__init__(Pushed(), policy, seconds, moves=True)
        self.buffer, self.workers_share = np.zeros(2), workers_share

    def merge_all(self, merge):
        p, a, center = int(merge.part), self.workers_share, self.server.center
        models = [self.models[k] for k in merge.members]
        if MergeOp.PUSH in merge.op:
            mean = center[p] - np.mean([w[p] for w in models])
            self.buffer[p] = self.share * self.buffer[p] + mean
            center[p] -= self.rate * (mean + self.share * self.buffer[p])
        if MergeOp.FETCH in merge.op:
            for w in models:
                w[p] = a * w[p] + (1 - a) * center[p]


def operations(run):
    """Each event and its operations, such as "4/0: 0 push, 2 fetch"."""
    table = []
    for event, actions in itertools.islice(run.actions, 1, None):
        merges = [
            f"{''.join(map(str, m.members))} "
            + "+".join(sorted(part.name.lower() for part in m.op))
            for m in actions.merges
        ]
        if merges:
            name = event.worker if isinstance(event, Arrival) else "timer"
            table.append(f"{event.time:g}/{name}: {', '.join(merges)}")
    return table
