"""A policy on a clock that is recorded: as `play`, and merges are told when they were.

Like the loop, and without a model; machines of the tests of traces and fits.
"""

from hetjax.machine import (
    Cost,
    Link,
    Machine,
    Profile,
    RecordedClock,
    Recorder,
    RunEnded,
    SimulatedClock,
    Slow,
)
from hetjax.schedule import Orders, Policy

HEADER = {
    "strategy": "sync",
    "seed": 0,
    "instants": [9.0],
    "forms": {"gpu": "dispatch"},
    "nodes": 0,
    "slowdowns": [1.0],
    "on_nan": "restart",
    "on_loss": "go_on",
}


def profiles(*costs, **changes):
    """Workers w0, w1, ... with these costs."""
    return tuple(Profile(f"w{k}", "gpu", c, **changes) for k, c in enumerate(costs))


def machine(*seconds, **changes):
    """Workers whose step takes so many seconds; a merge takes half a second."""
    workers = profiles(*(Cost(s, 0.0) for s in seconds))
    return Machine("m", workers, {"": Link(0.25, 1e9, "central")}, **changes)


def no_nonzeros(work):
    return [0] * work.steps


def scripted(*answers):
    """Gives these orders, one after the other, whatever happens; then none."""

    def orders(k):
        return answers[k] if k < len(answers) else Orders()

    return Policy(lambda infos, n: (1, orders(0)), lambda k, event: (k + 1, orders(k)))


def carried_out(policy, clock, *, num_bytes=0.0, nonzeros=no_nonzeros):
    """Each event and the orders it leads to, first (None, the initial orders).

    `nonzeros(work)` are those of its steps. It ends when nothing is pending, or with
    RunEnded.
    """
    event = None
    try:
        state, orders = policy.init(clock.workers, 1000)
        while True:
            for merge in orders.merges:
                clock.merged(merge, clock.merge(merge, num_bytes))
            for worker in orders.start:
                clock.start(worker)
            for worker, work in orders.dispatch:
                clock.dispatch(worker, work, nonzeros(work))
            for name, time in orders.alarms:
                clock.set_alarm(name, time)
            for worker in orders.stop:
                clock.stop(worker)
            yield event, orders
            event = clock.next()
            if event is None:
                return
            orders = Orders()
            if not isinstance(event, Slow):
                state, orders = policy.react(state, event)
    except RunEnded as ended:
        yield ended.args[0], None


def recorded(policy, machine, *, path=None, count=None, header=HEADER, **settings):
    """The first `count` events of a run (all: None), with their orders; its trace."""
    if header is HEADER:
        header = HEADER | {"slowdowns": [1.0] * len(machine.workers)}
    recorder = Recorder(SimulatedClock(machine, seed=0), header, path)
    run = []
    for entry in carried_out(policy, recorder, **settings):
        run.append(entry)
        if len(run) == count:
            break
    recorder.ends({"stopped": "as asked"})
    recorder.close()
    return run, recorder.recording.load()


def replayed(policy, trace):
    """The same on the clock of a trace."""
    return list(carried_out(policy, RecordedClock(trace)))
