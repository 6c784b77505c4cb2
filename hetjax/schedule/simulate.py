"""Runs a policy on a clock without a model: what each worker does when (host world).

This suffices for questions of time: batch sizes, waiting, communication, throughput.
"""

from collections.abc import Iterator

from hetjax.machine.simulated_clock import SimulatedClock
from hetjax.machine.types import Event, Slow, WorkerInfo
from hetjax.schedule.checks import begin, react
from hetjax.schedule.types import Actions, Policy


def simulate(
    policy: Policy,
    clock: SimulatedClock,
    *,
    num_examples: int,
    num_bytes: float = 0.0,
    nonzeros: float = 0.0,
) -> Iterator[tuple[Event | None, Actions]]:
    """Yields each event of a run with the actions that it leads to.

    The first pair is (None, the initial actions). `num_bytes` is the size of the model,
    `nonzeros` the number of non-zeros per example. A run ends when no event is pending
    any more; most runs never end, so take as many pairs as you need.
    """
    workers: tuple[WorkerInfo, ...] = clock.workers
    tree = policy.topology(workers)
    state, actions = begin(policy, workers, num_examples)
    event: Event | None = None
    while True:
        for merge in actions.merges:
            clock.merge(merge, num_bytes, below=tree.workers_below(merge.members))
        for worker in actions.start:
            clock.start(worker)
        for worker, local_round in actions.dispatch:
            local_round.check()
            clock.dispatch(
                worker,
                local_round,
                [int(nonzeros * local_round.size)] * local_round.local_steps,
            )
        for name, time in actions.timers:
            clock.set_timer(name, time)
        for worker in actions.stop:
            clock.stop(worker)
        yield event, actions
        event = clock.next()
        if event is None:
            return
        if isinstance(event, Slow):  # policies are not told
            actions = Actions()
            continue
        state, actions = react(policy, state, event)
