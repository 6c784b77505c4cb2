"""A loop that carries out a policy's actions on a simulated clock, and nothing else.

Unlike `hetjax.engine.decisions` it writes no tape and keeps no ledger. It cancels
rounds, and does merges without members, in the order that `Actions` promises.
"""

from policy_driver import ByHand, written

from hetjax.machine import Merged, SimulatedClock
from hetjax.machine.types import Slow
from hetjax.schedule.action_checks import begin, react


class CancellingClock(SimulatedClock):
    """A simulated clock (of workers that do not contend) that can cancel rounds."""

    def cancel(self, worker):
        """End the worker's round now: it never arrives."""
        roster = self._events.roster
        assert worker in roster.working, "only a round in flight can be cancelled"
        working = roster.working - {worker}
        self._events.discard_arrivals(worker)
        self._events.roster = roster._replace(working=working)
        self._merges.set_worker_free(worker, self.now)

    def merge(self, action, num_bytes, seconds=0.0, below=()):
        """Schedule a merge; one without members is done when its node is free."""
        if action.members:
            return super().merge(action, num_bytes, seconds, below)
        done = max(self.now, self._merges._nodes.get(action.node, 0.0))
        self._events.push(done, Merged(action.node, done, (), action.op))


def decisions(policy, clock, *, num_examples=1000, num_bytes=0.0):
    """Yield each event and the policy's actions; the first event is None."""
    event, topology = None, policy.topology(clock.workers)
    state, actions = begin(policy, clock.workers, num_examples)
    while True:
        yield event, actions
        for worker in actions.cancel:
            clock.cancel(worker)
        for merge in actions.merges:
            clock.merge(merge, num_bytes, 0.0, topology.workers_below(merge.members))
        for worker in actions.start:
            clock.start(worker)
        for worker, given in actions.dispatch:
            clock.dispatch(worker, given, [0] * given.local_steps)
        for timer in actions.timers:
            clock.set_timer(*timer)
        for worker in actions.stop:
            clock.stop(worker)
        event = clock.next()
        while isinstance(event, Slow):
            event = clock.next()
        if event is None:
            return
        state, actions = react(policy, state, event)


class CancellingByHand(ByHand):
    """A clock by hand that can cancel rounds; timers are events of the test."""

    def merge(self, action, *_):
        assert not self.roster.working & set(action.members), "one is busy"

    def cancel(self, worker):
        working = self.roster.working
        assert worker in working, "only a round in flight can be cancelled"
        self.roster = self.roster._replace(working=working - {worker})

    def set_timer(self, name, time):
        assert time >= self.now


def follow(policy, workers, events):
    """The actions at the start and at each event, as `policy_driver.follow`."""
    run = decisions(policy, CancellingByHand(workers, events))
    return [written(actions) for _, actions in run]
