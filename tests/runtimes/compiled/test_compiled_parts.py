"""Compiled runs of many workers, and of parts that users write themselves."""

import jax
import jax.numpy as jnp
import optax
import pytest
from checkpointed_runs import session
from compiled_runs import (
    IN_TURN,
    SIDE_BY_SIDE,
    assert_agree,
    close,
    compiled,
    reference,
    runs_of,
    task_of,
)
from quick import quick_if
from small_runs import strategy
from tiny_problems import three_workers
from tiny_runs import counting_data, counting_task

import hetjax as hj
from hetjax.machine import (
    Arrival,
    Cost,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Profile,
    ScriptedFault,
)
from hetjax.schedule import Actions, Policy

BOTH = (IN_TURN, SIDE_BY_SIDE)


def check(runs, made, *, orders=BOTH, **settings):
    """Both players agree on a run; return its history."""
    expected = reference(runs, made)
    for side_by_side in orders:
        assert_agree(compiled(runs, made, side_by_side), expected, **settings)
    return expected


# -- merges of many members -----------------------------------------------------------


MANY = 10


def many_workers(*, faults=()):
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(1e-3, 1e-4), factor=1 + k % 3 / 2)
        for k in range(MANY)
    )
    link = Link(latency=1e-4, bandwidth=1e8)
    return Machine("many", workers, {"": link}, noise=0.1, seed=5, faults=faults)


FOR_MANY = {
    "sync_sgd": {},
    "sma": {},
    "easgd_sync": {},
    "local_sgd": {"local_steps": 2},
    "fed_nova": {"local_steps": 2},
    "adaptive_sgd": {"mega_batch": 60, "beta": 1.0},
}


@pytest.mark.parametrize(
    ("name", "kind", "lost"),
    quick_if(
        lambda row: row == ("sma", "mlp", True),
        [
            (n, kind, lost)
            for n in FOR_MANY
            for kind in ("mlp", "statistics")
            for lost in (False, True)
        ],
    ),
)
def test_merges_of_many_members(name, kind, lost):
    """A stack; of all workers at once, and, if one is lost, of some."""
    faults = (ScriptedFault(0.011, "kill", "w3"),) if lost else ()
    task, data = task_of(kind)
    made = hj.STRATEGIES[name](batch_size=6, learning_rate=0.1, **FOR_MANY[name])
    runs = session(task, data, many_workers(faults=faults), 0.04)
    history = check(runs, made, orders=(IN_TURN,), atol=3e-6)
    assert len(history.last_members) >= MANY - lost
    assert (len(history.last_members) < len(history.workers)) == lost


# -- parts of a user -------------------------------------------------------------------


def by_freshness():
    """A merge on tuples, as a user writes one."""

    def init(params, model_state=()):
        return params, model_state

    def apply(state, replicas, stats, op):
        weights = stats.present / (1 + stats.staleness)
        params = hj.formulas.weighted_mean([r.params for r in replicas], weights)
        return (params, state[1]), tuple(r._replace(params=params) for r in replicas)

    return hj.merge.Merge(
        init,
        apply,
        model=lambda state: state,
        properties=hj.merge.MergeProperty.BROADCASTS,
    )


def in_pairs():
    """A policy of a user: the first two workers that wait merge, and go on."""

    def init(workers, num_examples):
        given = tuple((w.index, LocalRound(1 + w.index, 4)) for w in workers)
        return frozenset(), Actions(dispatch=given)

    def react(waiting, event):
        if not isinstance(event, Arrival):
            return waiting, Actions()
        waiting = waiting | {event.worker}
        if len(waiting) < 2:
            return waiting, Actions()
        pair = tuple(sorted(waiting))
        again = tuple((k, LocalRound(1 + k, 4)) for k in pair)
        return frozenset(), Actions((MergeAction(pair),), again)

    return Policy(init, react)


def own(**parts):
    given = {
        "policy": in_pairs(),
        "local": hj.local.sgd(),
        "merge": hj.merge.average(),
        "batch_size": 4,
        "learning_rate": 0.1,
    }
    return hj.Strategy(**{**given, **parts})


def test_an_own_merge_and_an_own_policy():
    history = check(runs_of("mlp"), own(merge=by_freshness()))
    assert history.merges > 5


@pytest.mark.parametrize(
    "local",
    [
        hj.local.sgd(momentum=0.9),
        hj.local.from_optax(optax.adam),
    ],
    ids=["momentum", "adam"],
)
def test_optimizers_with_state(local):
    # Adam divides by the root of what is nearly 0 at first
    check(runs_of("mlp"), own(local=local), atol=2e-5)


def test_an_own_task():
    """Each step adds exactly the learning rate, and both players say how many."""
    runs = session(counting_task(), counting_data(), three_workers(), 0.06)
    history = check(runs, own(learning_rate=1.0), atol=0)
    assert history.evals[-1]["w"] > 3


def test_parameters_in_bfloat16():
    task, data = task_of("mlp")

    def init(key):
        params, state = task.init(key)
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), state

    runs = session(task._replace(init=init), data, three_workers(), 0.03)
    made = strategy("local_sgd", 6)
    history = check(runs, made, orders=(IN_TURN,), atol=2**-7)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(history.params))


def test_schedules_and_batch_sizes_that_change():
    rate = hj.LearningRate(lambda seconds: 0.1 / (1 + 50 * seconds), "seconds")
    check(runs_of("mlp"), strategy("adaptive_sgd", 6)._replace(learning_rate=rate))


def test_a_worker_at_work_is_no_partner_of_a_merge_that_is_not_shared():
    def react(state, event):
        if not isinstance(event, Arrival):
            return state, Actions()
        return state, Actions(merges=(MergeAction((event.worker,), partners=(2,)),))

    first = tuple((k, LocalRound(1 + 9 * (k == 2), 4)) for k in range(3))
    policy = Policy(lambda infos, n: ((), Actions(dispatch=first)), react)
    runs, messages = runs_of("mlp"), []
    for play in (reference, compiled):
        history = play(runs, own(policy=policy))
        messages.append(str(history.error))
    assert messages[0] == messages[1]
    assert "is a partner in a merge during its round" in messages[0]


def test_the_model_of_the_best_evaluation():
    """What a program changes in place was not given away before."""
    runs, made = runs_of("mlp"), strategy("easgd", 6)
    best = compiled(runs, made, tracks_best=True)
    expected = reference(runs, made, tracks_best=True)
    models = [(h.best_params, h.params) for h in (best, expected)]
    jax.tree.map(lambda a, b: close(a, b, 1e-6), *models)
