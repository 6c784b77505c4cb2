"""Resumption on a mesh: a run that continues from a snapshot gives the same result."""

import pytest
from checkpointed_runs import Memory, load, outcome, run, session, some
from mesh_runs import MeshMachine, layout
from quick import quick
from real_runs import DATA, TASK, poisoned_task
from test_mesh_policies import EVERYBODY, OBSERVING, SOMETIMES

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.machine import Arrival, LocalRound, MergeAction, Merged
from hetjax.schedule.types import Actions
from hetjax.strategies import Strategy

COMMON = {"batch_size": 4, "learning_rate": 0.1}
HALF, REST = EVERYBODY[4:], EVERYBODY[:4]


def one_after_the_other():
    """A half merges; when that is done, so does the rest, and all continue."""
    rounds = tuple((k, LocalRound(1, 4)) for k in EVERYBODY)

    def react(working, event):
        if isinstance(event, Arrival):
            merges = () if working > 1 else (MergeAction(HALF),)
            return working - 1, Actions(merges=merges)
        if isinstance(event, Merged) and event.members == HALF:
            return working, Actions(merges=(MergeAction(REST),))
        if isinstance(event, Merged):
            return len(EVERYBODY), Actions(dispatch=rounds)
        return working, Actions()

    return schedule.Policy(
        lambda infos, num_examples: (len(infos), Actions(dispatch=rounds)),
        react,
        bulk_synchronous=True,
    )


OWN = Strategy(SOMETIMES, local.sgd(momentum=0.5), merge.average(), 4, 0.1)
NAN = {"task": poisoned_task(), "on_nan": "reset"}
CASES = {  # strategy, supersteps per launch, settings
    "elastic": (hj.elastic_sgd(**COMMON, local_steps=2), 1, {}),
    "tree, NaN": (hj.sma(**COMMON, two_level=2), 3, NAN),
    "merges every second superstep": (OWN, 3, {}),
    "a merge after another": (OWN._replace(policy=one_after_the_other()), 1, NAN),
    "observed": (OWN._replace(sampler=OBSERVING), 1, {}),
}


@pytest.mark.parametrize("name", quick(CASES, "tree, NaN", "a merge after another"))
def test_a_resumed_run_equals_an_uninterrupted_one(name):
    """Snapshots split supersteps into parts in both runs."""
    strategy, per_launch, settings = CASES[name]
    settings = {"task": TASK, "num_evals": 5, **settings}
    machine = MeshMachine(layout("8 x 1"), per_launch=per_launch)
    runs = session(data=DATA, machine=machine, seconds=9.5, **settings)
    saver = Memory()
    whole = outcome(run(runs, strategy, saver=saver))
    assert len(saver.cuts) > 3
    for cut in some(saver.cuts, 5):
        again = run(runs, strategy, saver=Memory(), saved=load(cut))
        assert outcome(again) == whole
