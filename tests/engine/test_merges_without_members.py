"""Reports that enter sums, and a merge without members that applies them."""

import optax
import pytest
from tiny_runs import averaging, column, machine, train

from hetjax import merge
from hetjax.machine import Arrival, LocalRound, MergeAction, MergeOp, Timer
from hetjax.schedule import Actions, Policy

STEP = LocalRound(1, 2)


def init(workers, num_examples):
    every = tuple((worker.index, STEP) for worker in workers)
    return (), Actions(dispatch=every, timers=(("apply", 2.5),))


def react(state, event):
    if isinstance(event, Arrival):
        action = MergeAction((event.worker,), op=MergeOp.ACCUMULATE, transfers=1)
        return state, Actions(merges=(action,))
    if isinstance(event, Timer) and event.name == "apply":
        action = MergeAction((), op=MergeOp.APPLY, transfers=0)
        return state, Actions(merges=(action,))
    return state, Actions()


@pytest.mark.parametrize("compiled", [False, True])
def test_what_entered_is_applied_once(compiled):
    """Two workers add 1 each; their sum, 2 at rate 1 in place of the mean, is D."""
    merging = merge.buffered(optax.sgd(1.0), scale=2.0)
    strategy = averaging()._replace(policy=Policy(init, react), merge=merging)
    history = train(machine(1.0, 2.0), strategy, 4.0, num_evals=16, compiled=compiled)
    models = dict(zip(column(history, "seconds"), column(history, "w"), strict=True))
    assert (models[1.5], models[2.25]) == (0.0, 0.0)  # both are in, the model stays
    assert (models[2.75], column(history, "w")[-1]) == (2.0, 2.0)
