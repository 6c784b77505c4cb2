"""Policies with unusual supersteps on a mesh, against simulated workers."""

import jax
import numpy as np
import pytest
from mesh_runs import close, on_mesh, simulated
from quick import quick
from real_runs import poisoned_task

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.machine import Arrival, LocalRound, MergeAction
from hetjax.schedule.types import Actions
from hetjax.strategies import Strategy

EVERYBODY = tuple(range(8))
INNER = schedule.rounds(local_steps=1, batch_size=4)
NAN = {"task": poisoned_task(), "on_nan": "reset"}
OBSERVING = hj.biased_local_sgd(batch_size=4, learning_rate=0.1, local_steps=1).sampler


def merging(*supersteps, steps=(1,)):
    """Rounds of all workers, each followed by the next superstep's merges.

    The rounds cycle through the numbers of `steps`.
    """

    def dispatch(superstep):
        local_round = LocalRound(steps[superstep % len(steps)], 4)
        return tuple((k, local_round) for k in EVERYBODY)

    def react(state, event):
        superstep, pending = state
        if not isinstance(event, Arrival):
            return state, Actions()
        if pending > 1:
            return (superstep, pending - 1), Actions()
        merges = tuple(map(MergeAction, supersteps[superstep % len(supersteps)]))
        return (superstep + 1, 8), Actions(
            merges=merges, dispatch=dispatch(superstep + 1)
        )

    return schedule.Policy(
        lambda infos, num_examples: ((0, 8), Actions(dispatch=dispatch(0))),
        react,
        bulk_synchronous=True,
    )


FOR_SAMPLERS = pytest.mark.parametrize(
    "sampler",
    [pytest.param(None, marks=pytest.mark.full), OBSERVING],
    ids=["", "observed"],
)
HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))
SOMETIMES = merging((), (EVERYBODY,))


def same(
    policy, supersteps, *, step_mode="fused", per_launch=1, sampler=None, **options
):
    chosen = Strategy(policy, local.sgd(momentum=0.5), merge.average(), 4, 0.1)
    if sampler:
        chosen = chosen._replace(sampler=sampler)
    expected = simulated(chosen, supersteps, **options)
    how = {"step_mode": step_mode, "per_launch": per_launch}
    actual = on_mesh(chosen, "8 x 1", supersteps, **how, **options)
    assert (actual.stopped, actual.merges) == ("", expected.merges)
    close(actual.params, expected.params, 1e-6)
    for counter in ("nans", "updates", "examples"):
        numbers = [[getattr(w, counter) for w in h.workers] for h in (actual, expected)]
        assert numbers[0] == numbers[1], counter
    assert actual.evals[-1]["updates"] == expected.evals[-1]["updates"]
    return actual


@pytest.mark.full
def test_a_tree_whose_members_have_different_depths():
    deep = schedule.hierarchical(INNER, sizes=2)
    same(schedule.hierarchical([deep, INNER], sizes=4), 4)


@pytest.mark.parametrize("step_mode", quick(["fused", "dispatch"], "dispatch"))
def test_supersteps_without_a_merge(step_mode):
    same(SOMETIMES, 6, step_mode=step_mode)
    same(SOMETIMES, 6, step_mode=step_mode, on_nan="stop")


@pytest.mark.parametrize("step_mode", quick(["fused", "dispatch"], "fused"))
def test_several_supersteps_per_launch(step_mode):
    same(INNER, 7, step_mode=step_mode, per_launch=3)


@FOR_SAMPLERS
def test_two_merges_of_one_superstep(sampler):
    """If losses are observed, the second is launched when the first is done."""
    both = merging(HALVES)
    same(both, 9, sampler=sampler)
    actual = same(both, 14, sampler=sampler, **NAN)
    assert sum(w.nans for w in actual.workers) > 0


@FOR_SAMPLERS
def test_a_nan_below_a_node(sampler):
    """If losses are observed, it is known before all workers have arrived."""
    policy = schedule.hierarchical(INNER, sizes=4)
    actual = same(policy, 14, sampler=sampler, **NAN)
    assert sum(w.nans for w in actual.workers) > 0
    assert np.all([np.isfinite(x).all() for x in jax.tree.leaves(actual.params)])


@pytest.mark.parametrize("step_mode", ["fused", "dispatch"])
def test_rounds_without_steps(step_mode):
    """They only fetch the result of a merge."""
    policy = merging((EVERYBODY,), steps=(1, 0))
    chosen = Strategy(policy, local.sgd(), merge.average(), 4, 0.1)
    history = on_mesh(chosen, "8 x 1", 3, step_mode=step_mode)
    assert history.stopped == ""
    assert history.merges >= 5  # a superstep without steps takes no time
    assert len({w.updates for w in history.workers}) == 1


def test_partners_are_refused():
    policy = merging((EVERYBODY,))
    partner = (MergeAction((0,), partners=(1,)),)

    def react(state, event):
        state, actions = policy.react(state, event)
        return state, actions._replace(merges=partner) if actions.merges else actions

    chosen = Strategy(
        policy._replace(react=react), local.sgd(), merge.average(), 4, 0.1
    )
    with pytest.raises(ValueError, match=r"partners \(1,\) changes replicas"):
        on_mesh(chosen, "8 x 1", 3)


@pytest.mark.parametrize(
    ("members", "message"),
    [((99,), "there is no worker 99"), ((), "a merge needs at least one member")],
)
def test_missing_members_are_refused(members, message):
    policy = merging((EVERYBODY,))

    def react(state, event):
        state, actions = policy.react(state, event)
        wrong = tuple(merge._replace(members=members) for merge in actions.merges)
        return state, actions._replace(merges=wrong)

    wrong = policy._replace(react=react)
    chosen = Strategy(wrong, local.sgd(), merge.average(), 4, 0.1)
    with pytest.raises(ValueError, match=message):
        on_mesh(chosen, "8 x 1", 3)
