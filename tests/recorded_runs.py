"""A policy on a recorded clock: like `simulate`, with merges that take time.

This is the loop without a model. The machines of the tests of traces and fits.
"""

from hetjax.machine import (
    Cost,
    Link,
    Machine,
    PlannedMerge,
    Profile,
    RunEnded,
    SimulatedClock,
    Slow,
)
from hetjax.machine.types import MergeTimes, Stamps
from hetjax.schedule import Actions, Policy
from hetjax.tracing.recorded_clock import RecordedClock
from hetjax.tracing.recorder import Recorder

NO_TIMES = MergeTimes(Stamps(0.0, 0.0, 0.0, 0.0))  # of a merge that does nothing

HEADER = {
    "strategy": "sync",
    "seed": 0,
    "instants": [9.0],
    "step_modes": {"gpu": "dispatch"},
    "nodes": 0,
    "slowdowns": [1.0],
    "on_nan": "reset",
    "on_lost_worker": "continue",
}


def profiles(*costs, **changes):
    """Profiles of workers w0, w1, ... with these costs."""
    return tuple(Profile(f"w{k}", "gpu", c, **changes) for k, c in enumerate(costs))


def machine(*seconds, **changes):
    """Workers with these seconds per step; a merge takes half a second."""
    workers = profiles(*(Cost(s, 0.0) for s in seconds))
    return Machine(
        "m",
        workers,
        {"": Link(latency=0.25, bandwidth=1e9, topology="central")},
        **changes,
    )


def no_nonzeros(local_round):
    return [0] * local_round.local_steps


def scripted(*answers):
    """A policy that gives these actions in turn, whatever happens; then none."""

    def actions(k):
        return answers[k] if k < len(answers) else Actions()

    return Policy(
        lambda infos, n: (1, actions(0)), lambda k, event: (k + 1, actions(k))
    )


def planned(action, policy, workers, num_bytes=0.0):
    """The merge as the loop plans it, with nothing to execute."""
    below = policy.topology(workers).workers_below(action.members)
    return PlannedMerge(
        action, num_bytes, 0.0, below, lambda visible, missing=(): NO_TIMES
    )


def carried_out(policy, clock, *, num_bytes=0.0, nonzeros=no_nonzeros):
    """Yield each event and the actions it leads to, first (None, the initial actions).

    `nonzeros(local_round)` gives the non-zeros of its steps. The run ends when nothing
    is pending, or with RunEnded.
    """
    event = None
    try:
        state, actions = policy.init(clock.workers, 1000)
        while True:
            for merge in actions.merges:
                clock.carry_out(planned(merge, policy, clock.workers, num_bytes))
            for worker in actions.start:
                clock.start(worker)
            for worker, local_round in actions.dispatch:
                clock.dispatch(worker, local_round, nonzeros(local_round))
            for name, time in actions.timers:
                clock.set_timer(name, time)
            for worker in actions.stop:
                clock.stop(worker)
            yield event, actions
            event = clock.next()
            if event is None:
                return
            actions = Actions()
            if not isinstance(event, Slow):
                state, actions = policy.react(state, event)
    except RunEnded as ended:
        yield ended.args[0], None


def recorded(policy, machine, *, path=None, count=None, header=HEADER, **settings):
    """The first `count` events of a run (None: all) with their actions; its trace."""
    if header is HEADER:
        header = HEADER | {"slowdowns": [1.0] * len(machine.workers)}
    recorder = Recorder(SimulatedClock(machine, seed=0), header, path)
    run = []
    for entry in carried_out(policy, recorder, **settings):
        run.append(entry)
        if len(run) == count:
            break
    recorder.recording.end(stopped="as asked")
    recorder.recording.close()
    return run, recorder.recording.load()


def replayed(policy, trace):
    """The same as `recorded`, on the clock of a trace."""
    return list(carried_out(policy, RecordedClock(trace)))
