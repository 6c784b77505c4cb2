"""Compiled runs of what users bring: states, rules and errors of their own."""

import gc
import threading

import jax
import numpy as np
import pytest

import hetjax as hj
from hetjax.merge.group import Group

DATA = hj.data.digits()
TASK = hj.classification(hj.models.mlp(hidden=8), DATA)
MACHINE = hj.machine.preset("v100x3+k80")
BASE = hj.async_sgd(batch_size=8, learning_rate=0.1)


def train(strategy=BASE, machine=MACHINE, **settings):
    settings = {"seconds": 0.03, "num_evals": 3, "progress": False, **settings}
    return hj.train(TASK, DATA, machine, strategy, **settings)


def with_lock():
    """A policy whose state cannot be copied."""
    policy = BASE.policy

    def init(workers, num_examples):
        state, actions = policy.init(workers, num_examples)
        return (state, threading.Lock()), actions

    def react(state, event):
        inner, actions = policy.react(state[0], event)
        return (inner, state[1]), actions

    return BASE._replace(policy=hj.schedule.Policy(init, react))


def test_a_state_that_cannot_be_copied():
    history = train(with_lock())
    assert "the state of its policy cannot be copied" in history.not_compiled
    assert history.evals[-1]["updates"] > 0
    with pytest.raises(ValueError, match="cannot be copied.*omit compiled"):
        train(with_lock(), compiled=True)


def test_a_sampler_that_cannot_be_copied():
    sampler = hj.sampling.Sampler(
        lambda *job: threading.Lock(),
        lambda state, worker, n: (state, np.zeros(n, int)),
    )
    strategy = BASE._replace(sampler=sampler)
    with pytest.raises(ValueError, match="the sampler or the policy.*compiled=False"):
        train(strategy)
    assert train(strategy, compiled=False).evals[-1]["updates"] > 0


def one_by_one():
    """An average whose rule goes through the members of its group."""

    def rule(state, group, stats, op):
        del stats, op
        n = len(group.members)
        mean = jax.tree.map(lambda *x: sum(x) / n, *(r.params for r in group.members))
        members = tuple(r._replace(params=mean) for r in group.members)
        return (mean, state[1]), Group(members)

    return hj.merge.group_merge(
        lambda params, model_state=(): (params, model_state),
        rule,
        lambda state: state,
        properties=hj.merge.MergeProperty.BROADCASTS,
    )


def test_a_rule_that_goes_through_many_members():
    strategy = hj.local_sgd(batch_size=8, learning_rate=0.1, local_steps=2)
    strategy = strategy._replace(merge=one_by_one())
    runs = [
        train(strategy, hj.machine.preset("uniform:9"), compiled=compiled)
        for compiled in (True, False)
    ]
    found, expected = (jax.tree.leaves(run.params) for run in runs)
    for ours, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, others, atol=2e-6)


def counting():
    """An average whose state begins with a number of Python, and that reports it."""

    def apply(state, replicas, stats, op):
        del stats, op
        mean = jax.tree.map(lambda *x: sum(x) / len(x), *(r.params for r in replicas))
        moved = tuple(r._replace(params=mean) for r in replicas)
        return (mean, state[1], state[2] + 1), moved

    return hj.merge.Merge(
        lambda params, model_state=(): (params, model_state, 0),
        apply,
        lambda state: state[:2],
        report=lambda state: {"merged": int(state[2])},
    )


def test_numbers_of_a_merge_are_kept_and_reported(tmp_path):
    strategy = hj.local_sgd(batch_size=8, learning_rate=0.1, local_steps=2)
    strategy = strategy._replace(merge=counting())
    runs = [
        train(strategy, checkpoint=tmp_path, compiled=True),
        train(strategy, compiled=False),
    ]
    points = [[(p["seconds"], p["merged"]) for p in history.evals] for history in runs]
    assert points[0] == points[1]
    assert points[0][-1][1] == runs[0].merges > 0
    together = hj.compare(
        TASK,
        DATA,
        MACHINE,
        {"mine": strategy},
        seconds=0.03,
        num_evals=3,
        seeds=(0, 1),
        schedule_seed=0,
        progress=False,
    )
    assert "runs at once" in together.histories[0].played
    assert together.histories[0].evals[-1]["merged"] == points[0][-1][1]


def test_a_merge_that_fails_leaves_the_first_evaluation():
    def apply(*args):
        raise RuntimeError("a merge of my own")

    strategy = BASE._replace(merge=BASE.merge._replace(apply=apply))
    history = train(strategy, on_error="keep")
    assert str(history.error) == "a merge of my own"
    assert len(history.evals) == 1


def test_a_loss_that_is_not_finite_comes_before_a_later_error():
    policy = BASE.policy

    def react(state, event):
        if event.time > 0.01:
            raise RuntimeError("a policy of my own")
        return policy.react(state, event)

    strategy = BASE._replace(
        policy=hj.schedule.Policy(policy.init, react), learning_rate=1e30
    )
    ends = {train(strategy, compiled=c, on_error="keep").stopped for c in (True, False)}
    (end,) = ends
    assert "gpu2 became" in end


def test_many_sizes_that_cannot_be_padded():
    task = hj.task(
        lambda rngs: hj.models.mlp(hidden=8)(64, 10, rngs=rngs),
        lambda outputs, y: outputs[:, 0] ** 2 + y,
        data=DATA,
        batch_coupled=True,
    )
    base = BASE.policy

    def resized(actions):
        rounds = [(k, r._replace(batch_size=1.0 + k)) for k, r in actions.dispatch]
        return actions._replace(dispatch=tuple(rounds))

    def init(workers, num_examples):
        state, actions = base.init(workers, num_examples)
        return state, resized(actions)

    def react(state, event):
        state, actions = base.react(state, event)
        return state, resized(actions)

    strategy = BASE._replace(policy=hj.schedule.Policy(init, react))
    history = hj.train(
        task,
        DATA,
        hj.machine.preset("uniform:6"),
        strategy,
        seconds=0.01,
        num_evals=1,
        progress=False,
    )
    assert history.not_compiled == "its batches of 6 sizes cannot be padded to few"


def test_a_run_leaves_no_replicas_behind():
    train()
    gc.collect()
    gc.disable()
    try:
        before = len(jax.live_arrays())
        for _ in range(3):
            # a flax module refers to itself, but nothing else does
            leaves = len(jax.tree.leaves(train().params))
        assert len(jax.live_arrays()) <= before + 3 * leaves
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda n: np.full(n, 10**6), "the row 1000000 of a training split of"),
        (lambda n: np.full(n, -1), "the row -1 of a training split of"),
        (lambda n: np.full(n, 0.5), "whole numbers"),
        (lambda n: np.zeros((n, 1), int), "rows of shape"),
    ],
)
def test_rows_that_there_are_not(rows, message):
    sampler = hj.sampling.Sampler(
        lambda *job: (), lambda state, worker, n: (state, rows(n))
    )
    with pytest.raises((IndexError, ValueError), match=message):
        train(BASE._replace(sampler=sampler))
