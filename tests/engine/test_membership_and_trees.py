"""The loop: workers that join and leave, nested nodes, merges that measure."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import (
    averaging,
    column,
    counting_data,
    counting_task,
    machine,
    seconds_of,
    train,
)

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.machine import Arrival, Evaluated, LocalRound
from hetjax.schedule import Actions, LearningRate, MergeAction, Policy

# The model w counts the steps in it (see tiny_runs); learning rates are 1.


def script(first, *then):
    """A policy that gives these actions at the start, and at the n-th arrival."""

    def init(infos, n):
        return 0, first

    def react(count, event):
        if not isinstance(event, Arrival):
            return count, Actions()
        actions = then[count] if count < len(then) else Actions()
        return count + 1, actions

    return Policy(init, react)


def give(*workers, local_steps=1):
    return tuple((k, LocalRound(local_steps, 1)) for k in workers)


# Workers that join and leave


def test_a_worker_that_joins_later_begins_with_the_current_model():
    """a merges alone at 1, 2, 3 (w = 3); b joins at 3 and steps to 4; so does a.

    At 5 both merge: mean 4. From the initial model b would reach 1, and w 2.5.
    """
    alone = MergeAction((0,), transfers=0)
    policy = script(
        Actions(dispatch=give(0), stop=(1,)),
        Actions((alone,), dispatch=give(0)),
        Actions((alone,), dispatch=give(0)),
        Actions((alone,), start=(1,), dispatch=give(0, 1)),
        Actions(),
        Actions((MergeAction((0, 1), transfers=0),)),
    )
    history = train(machine(1.0, 2.0), averaging(policy=policy), 6.0, num_evals=6)
    assert column(history, "w") == [0, 1, 2, 3, 3, 4]
    # b copied version 3, the model after three merges
    assert [w.staleness for w in history.workers] == [{0: 4}, {0: 1}]


def test_a_worker_that_rejoins_begins_from_scratch():
    """b does a step and merges (w = 1), leaves, and rejoins when w is 3.

    Its old replica and momentum are gone: a step at learning rate 1 leads to 4.
    """
    both, alone = MergeAction((0, 1), transfers=0), MergeAction((0,), transfers=0)
    policy = script(
        Actions(dispatch=give(0, 1)),
        Actions(),
        Actions((both,), dispatch=give(0), stop=(1,)),  # at 1: a and b
        Actions((alone,), dispatch=give(0)),
        Actions((alone,), start=(1,), dispatch=give(1)),  # at 3
        Actions((MergeAction((1,), transfers=0),)),
    )
    strategy = averaging(policy=policy, local=local.sgd(momentum=0.5))
    # a: steps of 1, 1.5, 1.75 with its momentum; b: 1, and 1 again
    history = train(machine(1.0, 1.0), strategy, 5.0, num_evals=5)
    assert column(history, "w") == [0, 1, 2.5, 4.25, 5.25]


def test_a_worker_that_rejoins_before_it_merged_keeps_its_round():
    """b leaves and rejoins during its step of 2 s: the step is not lost."""
    policy = script(
        Actions(dispatch=give(0, 1), stop=(1,)),
        Actions(start=(1,)),
        Actions((MergeAction((1,), transfers=0),)),
    )
    history = train(machine(1.0, 2.0), averaging(policy=policy), 3.0, num_evals=3)
    assert column(history, "w") == [0, 0, 1]


# What a policy is told


def test_the_training_loss_is_that_of_the_rounds_since_the_last_evaluation():
    """A step's loss is -w before it: a's 0, -1, -2, ... at 1, 2, 3, ... (last of two).

    b never sees a's steps: the losses of its rounds of 2.5 s are 0 (the merged w).
    """
    told = []

    def listening(inner):
        def react(state, event):
            if isinstance(event, Evaluated):
                told.append((event.time, event.metrics.get("train_loss")))
            return inner.react(state, event)

        return inner._replace(react=react)

    policy = script(
        Actions(dispatch=give(0, 1, local_steps=2)),
        *[Actions(dispatch=give(k, local_steps=2)) for k in (0, 0, 1, 0, 0)],
    )
    train(
        machine(0.5, 1.25),
        averaging(policy=listening(policy)),
        5.0,
        num_evals=5,
    )
    # arrivals: a at 1 (-1), 2 (-3), 3 (-5), 4; b at 2.5 (-1)
    assert told == [(0, None), (1, -1), (2, -3), (3, (-5 - 1) / 2), (4, -7)]


# Learning rates: each step adds the learning rate that it was given


@pytest.mark.parametrize(
    ("learning_rate", "expected"),
    [
        # a's steps begin at 0, 1, 2, ... s, after 0, 2, 4, ... examples of 24
        (LearningRate(lambda s: s + 1, over="seconds"), [0, 1, 3, 6, 10]),
        (LearningRate(lambda n: 2.0**n, over="updates"), [0, 1, 3, 7, 15]),
        (LearningRate(lambda n: n + 1, over="examples"), [0, 1, 4, 9, 16]),
        (lambda n: n + 1, [0, 1, 4, 9, 16]),
        (LearningRate(lambda e: 24 * e + 1, over="epochs"), [0, 1, 4, 9, 16]),
        (0.5, [0, 0.5, 1, 1.5, 2]),
    ],
)
def test_a_learning_rate_over_each_unit(learning_rate, expected):
    history = train(
        machine(1.0), averaging(learning_rate=learning_rate), 4.0, num_evals=4
    )
    np.testing.assert_allclose(column(history, "w"), expected, rtol=1e-6)


# Trees


def tree_of(merges, *, every=1, broadcast=True, sizes=(2, 1), **fields):
    inner = schedule.rounds(batch_size=1)
    policy = schedule.hierarchical(inner, sizes=sizes, every=every, broadcast=broadcast)
    return averaging(policy=policy, merge=merges, batch_size=1, **fields)


def test_a_node_s_model_goes_to_all_workers_below():
    """a and b (1 s) merge at 1 and wait for c (2 s); the root's mean is 1, for all.

    At 4 all are at 2, and so on. No evaluation sees the groups' models before that.
    """
    merges = merge.average(), merge.average()
    history = train(machine(1.0, 1.0, 2.0), tree_of(merges), 8.0, num_evals=8)
    assert column(history, "w") == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    # two groups and the root; fetches do not count
    assert history.merges == 3 * 4
    assert [w.staleness for w in history.workers] == [{0: 4}] * 3


def test_a_node_merges_several_times_before_the_one_above():
    """Two rounds per group: 2 s and 4 s; the means are of two steps."""
    merges = merge.average(), merge.average()
    history = train(machine(1.0, 1.0, 2.0), tree_of(merges, every=2), 8.0, num_evals=4)
    assert column(history, "w") == [0, 0, 2, 2, 4]


def test_without_broadcast_workers_keep_their_models():
    """SMA on two levels, a_l = 1/2 (a, b) and 1 (c), a_g = 1/2; steps add 1.

    | round | w before    | pulls     | r after         | z                  |
    | 1     | 0, 0        | 0, 0      | 0, 0            | 0                  |
    | 2     | 1, 1        | 1/2, 1    | 1, 1            | 0                  |
    | 3     | 3/2, 1      | 1/4, 0    | 1 + 1/2 - 1/2,  | 1/2 + 1/2 = 1      |
    |       |             |           | 1 + 0 - 1/2     |                    |
    | 4     | 9/4, 2      | 5/8, 3/2  |                 | 1 + 0 - 1/4        |
    """
    merges = merge.sma(momentum=0.0), merge.sma(momentum=0.0)
    strategy = tree_of(merges, broadcast=False)
    history = train(machine(1.0, 1.0, 1.0), strategy, 4.0, num_evals=4)
    assert column(history, "w") == [0, 0, 0, 1, 0.75]


def test_groups_are_weighted_by_their_leaves():
    """HierSGD's root by default: gamma is 1/3 for three learners in groups of 2 and 1.

    Gradients -1: sums -2 and -1 below, and -3 / 3 at the root.
    """
    merges = merge.hierarchical(), merge.hierarchical(root=True)
    history = train(machine(1.0, 1.0, 1.0), tree_of(merges), 3.0, num_evals=3)
    np.testing.assert_allclose(column(history, "w"), [0, 1, 2, 3], rtol=1e-6)


def test_a_node_s_learning_rate_is_of_the_workers_with_a_round():
    """A mega-batch of one example: of a and b only a gets a batch.

    HierSGD's node steps by gamma 1 times the learning rate 1 of its active learners.
    """
    inner = schedule.mega_batch(examples=1, batch_size=1)
    policy = schedule.hierarchical(inner, sizes=2, every=1)
    merges = merge.hierarchical(), merge.hierarchical(gamma=1.0, root=True)
    strategy = averaging(policy=policy, merge=merges, batch_size=1)
    history = train(machine(1.0, 1.0, 1.0, 1.0), strategy, 2.0, num_evals=2)
    assert [w.updates for w in history.workers] == [2, 0, 2, 0]
    assert column(history, "w") == [0, 2, 4]  # both groups' gradients are 1


def test_a_merge_without_as_member_cannot_be_a_node():
    merges = merge.easgd(), merge.average()
    strategy = tree_of(merges)
    with pytest.raises(ValueError, match="no `as_member`"):
        train(machine(1.0, 1.0, 1.0), strategy, 3.0)


# Merges that measure


def measuring(**fields):
    """FedAcc with 2 of 24 examples held out: a measurement takes 1/3 of a step."""
    return averaging(merge=merge.fed_acc(), batch_size=2, **fields)


def test_measuring_is_charged_to_the_clock():
    """Steps of 3 s (a) and 6 s (b); b measures for 2 s: merges 6-8, 14-16."""
    history = train(machine(3.0, 6.0), measuring(), 17.0, num_evals=17)
    # a: 3 + 3 + 1 busy, b: 6 + 6 + 1
    assert seconds_of(history) == [(7.0, 6.0, 4.0, 0.0), (13.0, 0.0, 4.0, 0.0)]
    w = column(history, "w")
    assert (w[7], w[8], w[15], w[16]) == (0, 1, 1, 2)
    assert history.workers[0].examples == 2 * 2
    assert len(counting_data().train) == 24


def test_a_fetched_model_is_not_measured():
    """In a tree the models that come down are not measured: one measurement a round."""
    merges = merge.fed_acc(), merge.average()
    strategy = tree_of(merges)
    history = train(machine(3.0, 3.0, 3.0), strategy, 8.5, num_evals=17)
    # rounds of 3 s, measurements of 1 s: root merges at 4 and 8
    w = dict(zip(column(history, "seconds"), column(history, "w"), strict=True))
    assert (w[3.5], w[4.0], w[7.5], w[8.0]) == (0, 1, 1, 2)


# Partners


def test_a_partner_continues_while_it_is_averaged():
    """a (1 s) averages with b (2.5 s), whose gradient is older; w is their mean.

    Gradients are -1: each arrival moves the mean of two by 1/2, whichever is the
    partner.
    """
    partners = lambda worker, merges, workers: (1 - worker,)  # noqa: E731
    policy = schedule.asynchronous(batch_size=1, partners=partners)
    strategy = averaging(
        policy=policy, local=local.gradient(), merge=merge.gossip(), batch_size=1
    )
    history = train(machine(1.0, 2.5), strategy, 5.0, num_evals=5)
    assert column(history, "w") == [0, 0.5, 1, 2, 2.5, 3.5]
    assert [w.merging for w in history.workers] == [0, 0]
    assert [w.busy for w in history.workers] == [5, 5]
    assert [w.updates for w in history.workers] == [5, 2]
    assert [w.staleness for w in history.workers] == [{0: 4, 1: 1}, {2: 1, 3: 1}]


def test_a_partner_at_work_wants_a_merge_that_declares_it():
    partners = lambda worker, merges, workers: (1 - worker,)  # noqa: E731
    policy = schedule.asynchronous(batch_size=1, partners=partners)
    strategy = averaging(policy=policy, merge=merge.average(), batch_size=1)
    with pytest.raises(ValueError, match="worker 1 is a partner in a merge during its"):
        train(machine(1.0, 2.5), strategy, 5.0, num_evals=5)


def test_a_replica_has_the_buffers_of_its_merge():
    """A replica has the buffers that merge and local update require, and no others."""
    seen = {}
    base = merge.fed_adp()

    def apply(state, replicas, stats, op):
        seen.update(replicas[0].carry)
        return base.apply(state, replicas, stats, op)

    spying = base._replace(apply=apply)
    strategy = averaging(merge=spying, local=local.proximal(proximal=0.5))
    history = train(machine(1.0), strategy, 2.0, num_evals=2, task=counting_task())
    assert seen.keys() == {"angle", "round_start"}
    assert column(history, "w") == [0, 1, 2]
    assert jnp.ndim(history.params["w"]) == 1


def test_the_times_of_merges_increase():
    """A fetch that needs no link does not overtake a push that queues for it."""
    strategy = hj.magma_async_sgd(
        batch_size=1,
        learning_rate=0.1,
        subtract="swap",
        server_step_seconds=0.7,
        copy_seconds=0.5,
    )
    history = train(machine(1.0, 1.1, 3.0, link=1.8), strategy, 12.0)
    times = list(history.merge_times)
    assert times == sorted(times)
    assert len(times) == history.merges > 8
