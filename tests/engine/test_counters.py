"""Counters and flags of a model state reach the merged model, with every strategy."""

import chex
import jax
import jax.numpy as jnp
import pytest
import zoo
from quick import quick
from tiny_runs import averaging, counting_data, machine

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.engine.programs.task_programs import Programs
from hetjax.machine import Arrival, LocalRound
from hetjax.merge.counters import counting
from hetjax.replica import Replica


def task_with_counters():
    """0.5 (w - 1)^2; each step counts itself, and says that one was made."""

    def loss(params, model_state, batch, key):
        losses = 0.5 * (params["w"] - 1) ** 2 * jnp.ones_like(batch.weight)
        return losses, {"steps": model_state["steps"] + 1, "started": jnp.array(True)}

    def metrics(params, model_state, batch):
        ones = jnp.ones_like(batch.weight)
        return {
            "loss": 0.5 * (params["w"] - 1) ** 2 * ones,
            "steps": model_state["steps"] * ones,
        }

    def init(key):
        return {"w": jnp.zeros(())}, {
            "steps": jnp.int32(0),
            "started": jnp.array(False),
        }

    return hj.Task(init, loss, metrics, "steps")


TASK = task_with_counters()


def train(strategy, machine, seconds, **options):
    return hj.train(
        TASK,
        counting_data(),
        machine,
        strategy,
        **{"seconds": seconds, "num_evals": 2, "progress": False, **options},
    )


QUICK = ("local_sgd", "async_sgd", "hier_sgd", "ad_psgd", "magma_async_sgd")


@pytest.mark.parametrize("name", quick(hj.STRATEGIES, *QUICK))
def test_every_strategy_s_merged_model_counts(name):
    strategy = zoo.make(name, 4, **zoo.in_one_part(name))
    history = train(strategy, machine(1.0, 1.5, 2.0, link=0.01), 30.0)
    assert history.model_state["started"]
    steps = int(history.model_state["steps"])
    updates = [w.updates for w in history.workers]
    # a worker that continues from others' models also continues their counts
    assert 0 < steps <= sum(updates)
    assert history.evals[-1]["steps"] == steps


@pytest.mark.parametrize(
    ("strategy", "seconds", "steps"),
    [
        (hj.local_sgd(batch_size=4, learning_rate=0.1, local_steps=3), 12.0, 12),
        (hj.async_sgd(batch_size=4, learning_rate=0.1), 12.0, 12),
        (hj.sma(batch_size=4, learning_rate=0.1), 12.0, 12),
    ],
    ids=["local_sgd", "async_sgd", "sma"],
)
def test_of_one_worker_the_count_is_its_own(strategy, seconds, steps):
    history = train(strategy, machine(1.0), seconds)
    assert history.model_state["steps"] == steps == history.workers[0].updates


def test_of_several_workers_it_is_the_largest():
    """Rounds of 3 and 1 steps, from one count: 3 more after every merge."""
    strategy = averaging(local_steps=(3, 1))
    history = train(strategy, machine(1.0, 1.0), 9.0)
    assert history.model_state["steps"] == 9


def test_a_worker_that_joins_begins_from_the_merged_count():
    """a makes three steps, each merged alone; then b joins, and merges one of its own.

    From the initial model it would count 1, and the merged model would stay at 3.
    """
    alone = schedule.MergeAction((0,), transfers=0)

    def init(infos, n):
        return 0, schedule.Actions(dispatch=((0, LocalRound(1, 4)),), stop=(1,))

    def react(count, event):
        if not isinstance(event, Arrival):
            return count, schedule.Actions()
        if event.worker == 1:
            return count, schedule.Actions((alone._replace(members=(1,)),))
        last = count == 2
        given = ((int(last), LocalRound(1, 4)),)
        start = (1,) if last else ()
        return count + 1, schedule.Actions((alone,), start=start, dispatch=given)

    policy = schedule.Policy(init, react)
    history = train(averaging(policy=policy, batch_size=4), machine(1.0, 1.0), 6.0)
    assert history.model_state["steps"] == 4


@pytest.mark.parametrize("variant", [jax.jit, lambda f: f], ids=["jit", "plain"])
def test_counters_of_present_members(variant):
    """The largest of those present; a part of the workers also counts the node's."""
    rule = counting(merge.average(), (0, 1))

    def replica(steps, started):
        return Replica(jnp.ones(()), {"steps": jnp.int32(steps), "on": started})

    state = rule.init(jnp.zeros(()), {"steps": jnp.int32(5), "on": jnp.array(False)})
    members = (replica(9, True), replica(2, False), replica(3, False))

    @variant
    def apply(state, members, stats):
        return rule.apply(state, members, stats)

    def merged(local_steps, **given):
        new, after = apply(state, members, merge.stats(local_steps, **given))
        model_state = rule.model(new)[1]
        for r in after:  # they continue from the merged model
            chex.assert_trees_all_equal(r.model_state, model_state)
        return int(model_state["steps"]), bool(model_state["on"])

    assert merged([1, 1, 1]) == (9, True)
    assert merged([0, 1, 1]) == (5, False)  # 5: a worker of the run is absent
    assert merged([0, 0, 0]) == (5, False)
    assert merged([0, 1, 1], num_workers=2) == (3, False)


def test_members_that_keep_their_models_keep_their_counts():
    rule = counting(merge.sma(), (0,))
    state = rule.init(jnp.zeros(()), {"steps": jnp.int32(0)})
    new = [
        local.new_replica(
            local.sgd(), jnp.ones(()), {"steps": jnp.int32(k)}, requires=rule.requires
        )
        for k in (4, 7)
    ]
    state, after = rule.apply(state, tuple(new), merge.stats([4, 7]))
    assert [int(r.model_state["steps"]) for r in after] == [4, 7]
    assert rule.model(state)[1]["steps"] == 7


def test_without_counters_a_merge_is_as_it_was():
    """So that programs and numbers of such models do not change."""
    strategy = hj.sma(batch_size=4, learning_rate=0.1)
    data = counting_data()
    plain = hj.classification(hj.models.mlp(hidden=2), data)
    assert Programs(plain).merges_of(strategy) == strategy.merges
    assert Programs(TASK).merges_of(strategy) != strategy.merges


def test_on_a_mesh_likewise():
    """Rounds of 3 and 1 steps; each device has the same counts."""
    policy = schedule.rounds(local_steps=(3, 1), batch_size=2)
    two = hj.local_machine(jax.devices("cpu")[:2], placement="mesh", step_mode="fused")
    strategy = averaging(policy=policy, learning_rate=0.1)
    history = train(strategy, two, 60.0, num_evals=600, epochs=2)
    assert history.merges >= 6
    assert history.model_state["steps"] == 3 * history.merges
    assert history.model_state["started"]


def test_a_merge_during_a_round_keeps_the_larger_count():
    def replica(w, steps, started):
        w = jnp.full((), w)
        return Replica(w, {"steps": jnp.int32(steps), "on": jnp.array(started)})

    programs = Programs(TASK)
    for now, after, steps in ((7, 6, 7), (7, 9, 9)):
        found = programs.check_in(
            replica(1.0, now, False),  # merged, during the round, from
            replica(0.5, 5, False),  # which the round's steps
            replica(2.0, after, True),  # led to this
        )
        assert found.params == 1.0 + (2.0 - 0.5)
        assert found.model_state == {"steps": steps, "on": True}


def test_a_merge_that_averages_counters_too():
    """An own merge makes floats of all leaves; the counts stay counts, at their places.

    Worker b only fetches, after a's two steps.
    """

    def floats(trees):
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), trees)

    def apply(state, replicas, stats, op):
        mean = jax.tree.map(lambda *x: sum(x) / len(x), *[floats(r) for r in replicas])
        model = mean.params, mean.model_state
        return model, tuple(
            r._replace(params=model[0], model_state=model[1]) for r in replicas
        )

    def init(params, model_state=()):
        return floats((params, model_state))

    own = merge.Merge(
        init, apply, lambda state: state, properties=merge.MergeProperty.BROADCASTS
    )
    policy = schedule.asynchronous(batch_size=4, max_staleness=1)
    strategy = averaging(policy=policy, merge=own, batch_size=4, learning_rate=0.1)
    history = train(strategy, machine(1.0, 3.0), 12.0)
    steps, started = history.model_state["steps"], history.model_state["started"]
    assert steps.dtype == jnp.int32
    assert started.dtype == jnp.bool_
    assert started
    assert 0 < steps <= sum(w.updates for w in history.workers)
