"""Runs without a model: written by a policy and a clock, recorded, and replayed.

The machines of the tests of traces and fits.
"""

from hetjax.engine.drawn_examples import Examples
from hetjax.engine.protocols import Traits
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.tape_writer import TapeWriter
from hetjax.machine import Cost, Event, Link, Machine, Profile, RunEnded, SimulatedClock
from hetjax.sampling import uniform
from hetjax.schedule import Actions, Policy
from hetjax.tracing.recorder import Recorder
from hetjax.tracing.stored_tape import StoredTape

NUM_EXAMPLES = 1000

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


def scripted(*answers):
    """A policy that gives these actions in turn, whatever happens; then none."""

    def actions(k):
        return answers[k] if k < len(answers) else Actions()

    return Policy(
        lambda infos, n: (1, actions(0)), lambda k, event: (k + 1, actions(k))
    )


class Counted(Examples):
    """No rows, and the non-zeros in each step of a round that a function counts."""

    def __init__(self, nonzeros):
        super().__init__(uniform(), (), 1, 0, nonzeros=None)
        self._of_round = nonzeros

    def draw(self, worker, local_round):
        return (), self._of_round(local_round)


def no_nonzeros(local_round):
    return [0] * local_round.local_steps


def writer(policy, clock, *, num_bytes=0.0, nonzeros=no_nonzeros):
    """What writes the tape of a run without a model.

    `nonzeros(local_round)` gives the non-zeros of its steps.
    """
    topology = policy.topology(clock.workers)
    return TapeWriter(
        policy,
        clock,
        Counted(nonzeros),
        Ledger(clock.workers, topology),
        topology,
        num_examples=NUM_EXAMPLES,
        traits=Traits(num_bytes),
    )


def carried_out(tape, *, count=None, hear=lambda entry: None):
    """The first `count` events of a tape (None: all), each with its actions.

    The first pair is (None, the initial actions). If the run ends by itself, the last
    one is (why, None).
    """
    run = [(None, Actions())]
    try:
        for entry in tape.write():
            if isinstance(entry, Event):
                if len(run) == count:  # what the event before led to was carried out
                    break
                run.append((entry, Actions()))
            elif isinstance(entry, Actions):
                run[-1] = run[-1][0], entry
            hear(entry)
    except RunEnded as ended:
        run.append((ended.args[0], None))
    return run


def recorded(policy, machine, *, path=None, count=None, header=HEADER, **settings):
    """The first `count` events of a run (None: all) with their actions; its trace."""
    if header is HEADER:
        header = HEADER | {"slowdowns": [1.0] * len(machine.workers)}
    clock = SimulatedClock(machine, seed=0)
    recorder = Recorder(clock.workers, header, path)
    tape = writer(policy, clock, **settings)
    run = carried_out(tape, count=count, hear=recorder.write)
    recorder.end(stopped="as asked")
    recorder.close()
    return run, recorder.recording.load()


def replayed(policy, trace, **settings):
    """The same as `recorded`, from a trace."""
    tape = StoredTape(trace)
    return carried_out(writer(tape.policy(policy), tape, **settings))


def in_trace(run):
    """A run with those actions that a trace has: others are seen in its events."""
    return [(e, a and a._replace(timers=(), stop=())) for e, a in run]
