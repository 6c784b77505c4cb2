"""A policy on a clock without a model: who does what when (host world).

For what depends on time alone: batch sizes, waiting, communication, throughput.
"""

from collections.abc import Iterator

from hetjax.machine.clock import SimulatedClock
from hetjax.machine.types import Event, Slow, WorkerInfo
from hetjax.schedule.types import Orders, Policy


def play(
    policy: Policy,
    clock: SimulatedClock,
    *,
    num_examples: int,
    num_bytes: float = 0.0,
    nonzeros: float = 0.0,
) -> Iterator[tuple[Event | None, Orders]]:
    """Each event of a run and the orders that it leads to; first (None, the initial).

    `num_bytes` are those of the model, `nonzeros` an example's. It ends when nothing is
    pending any more; stop asking when you have seen enough.
    """
    workers: tuple[WorkerInfo, ...] = clock.workers
    state, orders = policy.init(workers, num_examples)
    event: Event | None = None
    while True:
        for merge in orders.merges:
            clock.merge(merge, num_bytes)
        for worker in orders.start:
            clock.start(worker)
        for worker, work in orders.dispatch:
            clock.dispatch(worker, work, [int(nonzeros * work.size)] * work.steps)
        for name, time in orders.alarms:
            clock.set_alarm(name, time)
        for worker in orders.stop:
            clock.stop(worker)
        yield event, orders
        event = clock.next()
        if event is None:
            return
        if isinstance(event, Slow):  # no policy is told
            orders = Orders()
            continue
        state, orders = policy.react(state, event)
