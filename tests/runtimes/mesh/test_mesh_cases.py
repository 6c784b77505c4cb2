"""Kinds of workers, models and data on a mesh, against simulated workers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mesh_runs import ON_ALL, close, on_mesh, simulated
from quick import quick
from real_runs import DATA, FEATURES, TASK, poisoned_task, what_happened

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.machine import Arrival, LocalRound, MergeAction, Timer
from hetjax.schedule.types import Actions
from hetjax.strategies import Strategy

pytestmark = pytest.mark.usefixtures("cpu_alone")
COMMON = {"batch_size": 4, "learning_rate": 0.1}
STEPS = (4, 2, 1, 4, 1, 3, 4, 2)
POISONED = poisoned_task()
SPARSE = hj.data.synthetic_xmc(
    rows=200,
    test_rows=50,
    features=60,
    labels=12,
    nonzeros=6.0,
    labels_per_row=2.0,
    seed=0,
)
SPARSE_TASK = hj.classification(hj.models.sparse_mlp(hidden=8), SPARSE)
# strategies are tried on the other layouts (`test_mesh_equals`)
ON_TWO = pytest.mark.parametrize("where", [ON_ALL[0], ON_ALL[2]])
UNEVEN = hj.local_sgd(**COMMON, local_steps=STEPS)


def strategy(merging, **settings):
    policy = schedule.rounds(**{"local_steps": 2, "batch_size": 4, **settings})
    return Strategy(policy, local.sgd(momentum=0.5), merging, 4, 0.1)


def both(chosen, where, supersteps, steps, *, tolerance=1e-6, **options):
    expected = simulated(chosen, supersteps, steps, **options)
    actual = on_mesh(chosen, where, supersteps, steps, **options)
    assert (actual.stopped, actual.merges) == ("", expected.merges)
    close(actual.params, expected.params, tolerance)
    close(actual.model_state, expected.model_state, tolerance)
    return actual, expected


@ON_TWO
def test_batches_of_unequal_sizes_are_padded_and_masked(where):
    sizes = (4, 2, 3, 4, 1, 4, 2, 4)
    chosen = strategy(
        merge.average(weights="examples"), local_steps=STEPS, batch_size=sizes
    )
    actual, expected = both(chosen, where, 5, 4)
    rounds = 5 * np.array(STEPS)
    for worker, padded in zip(
        actual.workers, rounds * (4 - np.array(sizes)), strict=True
    ):
        assert worker.padded == padded
    assert [w.padded for w in expected.workers] == [0] * 8


@ON_TWO
def test_workers_that_take_no_part_stay_as_they_are(where):
    chosen = strategy(merge.sma(), workers=lambda workers: (0, 3, 4, 6))
    actual, _ = both(chosen, where, 5, 2)
    assert [w.updates for w in actual.workers] == [10, 0, 0, 10, 10, 0, 10, 0]
    assert [k for k, w in enumerate(actual.workers) if w.idle] == [1, 2, 5, 7]


def taking_turns(groups):
    """Rounds of two steps, each by the next group of workers."""
    local_round = LocalRound(2, 4)

    def round_of(turn, merges=()):
        group = groups[turn % len(groups)]
        dispatch = tuple((k, local_round) for k in group)
        return (turn, len(group)), Actions(merges=merges, dispatch=dispatch)

    def init(infos, num_examples):
        del infos, num_examples
        return round_of(0)

    def react(state, event):
        turn, pending = state
        if not isinstance(event, Arrival):
            return state, Actions()
        if pending > 1:
            return (turn, pending - 1), Actions()
        merged = (MergeAction(groups[turn % len(groups)]),)
        return round_of(turn + 1, merged)

    return schedule.Policy(init, react, bulk_synchronous=True)


@ON_TWO
@pytest.mark.parametrize(
    "merging",
    [merge.sma(), pytest.param(merge.average(), marks=pytest.mark.full)],
    ids=["sma", "mean"],
)
def test_other_workers_take_part_each_time(where, merging):
    """The center moves on all devices, even without a worker that takes part."""
    policy = taking_turns(((3, 4, 6), (0, 1), (2, 5, 7), (7,)))
    chosen = Strategy(policy, local.sgd(momentum=0.5), merging, 4, 0.1)
    actual, expected = both(chosen, where, 7, 2)
    updates = [w.updates for w in actual.workers]
    assert updates == [4, 4, 4, 4, 4, 4, 4, 6]
    assert [w.staleness for w in actual.workers] == [
        w.staleness for w in expected.workers
    ]


@pytest.mark.full
def test_first_rounds_begin_from_the_center_also_step_by_step():
    policy = taking_turns(((3, 4, 6), (0, 1)))
    chosen = Strategy(policy, local.sgd(momentum=0.5), merge.sma(), 4, 0.1)
    both(chosen, "8 x 1", 4, 2)
    stepped = on_mesh(chosen, "8 x 1", 4, 2, step_mode="dispatch")
    close(stepped.params, on_mesh(chosen, "8 x 1", 4, 2).params, 1e-6)


def test_a_merge_before_a_workers_first_round_is_refused():
    first, others = (0, 1), tuple(range(8))

    def react(state, event):
        if isinstance(event, Arrival) and event.worker == 1:
            return state, Actions(merges=(MergeAction(first), MergeAction(others)))
        return state, Actions()

    rounds = tuple((k, LocalRound(2, 4)) for k in first)
    policy = schedule.Policy(
        lambda infos, num_examples: (1, Actions(dispatch=rounds)),
        react,
        bulk_synchronous=True,
    )
    chosen = Strategy(policy, local.sgd(), merge.average(), 4, 0.1)
    with pytest.raises(ValueError, match="worker 2 .* before its first round"):
        on_mesh(chosen, "8 x 1", 4, 2)


def test_a_merge_without_a_round_is_refused():
    """Here, on a timer between two supersteps."""

    def react(state, event):
        if isinstance(event, Timer):
            return state, Actions(merges=(MergeAction((0,)),))
        return state, Actions()

    policy = schedule.Policy(
        lambda infos, num_examples: (0, Actions(timers=(("mine", 0.1),))),
        react,
        bulk_synchronous=True,
    )
    chosen = Strategy(policy, local.sgd(), merge.average(), 4, 0.1)
    with pytest.raises(
        ValueError, match=r"merges \(0,\) when no round has just arrived"
    ):
        on_mesh(chosen, "8 x 1", 4, 2)


@pytest.mark.full
@ON_TWO
def test_sparse_inputs_and_row_views(where):
    both(UNEVEN, where, 5, 4, task=SPARSE_TASK, data=SPARSE)


@pytest.mark.full
@ON_TWO
def test_sparse_updates_of_rows(where):
    momentum = local.sgd(momentum=0.9, sparse_updates=True)
    chosen = UNEVEN._replace(local=momentum)
    both(chosen, where, 5, 4, task=SPARSE_TASK, data=SPARSE)


@ON_TWO
@pytest.mark.parametrize("per_launch", quick([1, 3], 3))
def test_a_nan_is_kept_out_and_named(where, per_launch):
    chosen = hj.elastic_sgd(**COMMON, local_steps=2)
    options = {"task": POISONED, "on_nan": "reset"}
    expected = simulated(chosen, 9, 2, **options)
    actual = on_mesh(chosen, where, 9, 2, per_launch=per_launch, **options)
    close(actual.params, expected.params, 1e-6)
    assert np.all([np.isfinite(x).all() for x in jax.tree.leaves(actual.params)])
    assert "nan" in {what for _, what in what_happened(actual)}
    assert actual.events == expected.events  # at the same times as well
    for counter in ("nans", "updates", "examples", "padded"):
        numbers = [[getattr(w, counter) for w in h.workers] for h in (actual, expected)]
        assert numbers[0] == numbers[1], counter


def test_a_nan_ends_the_run_if_asked():
    chosen = hj.elastic_sgd(**COMMON, local_steps=2)
    history = on_mesh(chosen, "4 x 2", 9, 2, task=POISONED, on_nan="stop")
    assert "the loss of worker w5 became nan at 2 s" in history.stopped


@pytest.mark.full
def test_a_nan_below_a_node_is_kept_out():
    chosen = hj.hier_sgd(**COMMON, levels=(4,), local_steps=(1, 2))
    options = {"task": POISONED, "on_nan": "reset"}
    expected = simulated(chosen, 12, 1, **options)
    actual = on_mesh(chosen, "8 x 1", 12, 1, **options)
    assert actual.events == expected.events != []
    close(actual.params, expected.params, 1e-6)


class Half(nnx.Module):
    """Weights in bfloat16."""

    def __init__(self, features, classes, *, rngs):
        self.linear = nnx.Linear(features, classes, rngs=rngs, param_dtype=jnp.bfloat16)

    def __call__(self, x):
        return self.linear(x.astype(jnp.bfloat16)).astype(jnp.float32)


class Normed(nnx.Module):
    """A model with batch statistics."""

    def __init__(self, features, classes, *, rngs):
        self.norm = nnx.BatchNorm(features, rngs=rngs)
        self.linear = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.norm(x))


@pytest.mark.full
@ON_TWO
def test_parameters_in_bfloat16(where):
    task = hj.classification(Half, DATA)
    actual, _ = both(UNEVEN, where, 5, 4, task=task, tolerance=1e-2)
    assert {x.dtype for x in jax.tree.leaves(actual.params)} == {
        jnp.dtype(jnp.bfloat16)
    }


@pytest.mark.full
@ON_TWO
def test_batch_statistics(where):
    both(UNEVEN, where, 5, 4, task=hj.classification(Normed, DATA))


def test_batch_statistics_need_equal_batch_sizes():
    task = hj.classification(Normed, DATA)
    chosen = strategy(merge.average(), batch_size=(4, 4, 4, 2, 4, 4, 4, 4))
    with pytest.raises(ValueError, match=r"batches of 2, 4 .* batch statistics"):
        on_mesh(chosen, "8 x 1", 2, 2, task=task)


@ON_TWO
def test_a_merge_written_on_tuples_sees_all_replicas(where):
    """A custom merge, which reads its members one by one."""
    plain = merge.average()

    def apply(state, replicas, stats, op=merge.PUSH_FETCH):
        heaviest = jnp.argmax(stats.local_steps)
        chosen = jax.tree.map(lambda *x: jnp.stack(x)[heaviest], *replicas)
        center = jax.tree.map(lambda x: x.astype(jnp.float32), chosen.params)
        state = state._replace(center=center)
        return state, tuple(r._replace(params=chosen.params) for r in replicas)

    own = plain._replace(apply=apply, properties=merge.MergeProperty.BROADCASTS)
    actual, _ = both(strategy(own, local_steps=STEPS), where, 5, 4, tolerance=0.0)
    said = "gathers all 8 replicas on every device: " in actual.placement
    assert said == (where != "1 x 8")  # one device has them all
    assert actual.placement.count("gathers") <= 1
    # parameters and momentum
    megabytes = 8 * 2 * sum(4 * x.size for x in jax.tree.leaves(actual.params)) / 1e6
    assert not said or actual.placement.endswith(f" {megabytes:.3g} MB")


@pytest.mark.full
@ON_TWO
def test_a_merge_written_on_tuples_sees_the_members_that_take_part(where):
    """A plain mean, without weights: absent replicas must not be in the tuple."""
    plain = merge.average()

    def apply(state, replicas, stats, op=merge.PUSH_FETCH):
        mean = jax.tree.map(lambda *x: sum(x) / len(x), *(r.params for r in replicas))
        state = state._replace(center=mean)
        return state, tuple(r._replace(params=mean) for r in replicas)

    own = plain._replace(apply=apply, properties=merge.MergeProperty.BROADCASTS)
    chosen = strategy(own, workers=lambda workers: (0, 3, 4, 6))
    both(chosen, where, 5, 2)


SMA_TREE = hj.sma(**COMMON, two_level=2, local_steps=3)
AVERAGES = Strategy(
    schedule.hierarchical(schedule.rounds(local_steps=2, batch_size=4), sizes=4),
    local.sgd(),
    tuple(merge.average(weights="examples") for _ in range(2)),
    4,
    0.1,
)


@ON_TWO
@pytest.mark.parametrize(
    ("chosen", "supersteps", "steps"),
    quick([(SMA_TREE, 7, 3), (AVERAGES, 12, 2)], (AVERAGES, 12, 2)),
)
def test_in_a_tree_a_round_that_is_not_finite_does_not_count(
    where, chosen, supersteps, steps
):
    """Nor for the node above, with a weight that depends on its workers' steps."""
    nan = {"task": POISONED, "on_nan": "reset"}
    actual, expected = both(chosen, where, supersteps, steps, **nan)
    nans = [w.nans for w in actual.workers]
    assert nans == [w.nans for w in expected.workers]
    assert sum(nans) > 5


@pytest.mark.parametrize("step_mode", ["unrolled", "vmapped", "dispatch"])
@pytest.mark.parametrize("where", [ON_ALL[2]])
def test_step_modes_of_sparse_data(where, step_mode):
    """BCOO arrays have their own vmap rule."""
    expected = simulated(UNEVEN, 3, 4, task=SPARSE_TASK, data=SPARSE)
    actual = on_mesh(
        UNEVEN, where, 3, 4, step_mode=step_mode, task=SPARSE_TASK, data=SPARSE
    )
    close(actual.params, expected.params, 1e-6)


@pytest.mark.parametrize(
    "step_mode", quick(["unrolled", "vmapped", "dispatch"], "dispatch")
)
@ON_TWO
def test_step_modes(where, step_mode):
    expected = simulated(UNEVEN, 5, 4)
    actual = on_mesh(UNEVEN, where, 5, 4, step_mode=step_mode)
    close(actual.params, expected.params, 1e-6)
    losses = [h.evals[-1]["loss"] for h in (actual, expected)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert actual.evals[-1]["updates"] == 5 * sum(STEPS)


@pytest.mark.parametrize("step_mode", quick(["fused", "dispatch"], "fused"))
def test_losses_reach_the_sampler(step_mode):
    """Each superstep's losses choose the next superstep's examples."""
    chosen = hj.biased_local_sgd(**COMMON, local_steps=STEPS)
    expected = simulated(chosen, 6, 4)
    actual = on_mesh(chosen, "4 x 2", 6, 4, step_mode=step_mode, per_launch=3)
    close(actual.params, expected.params, 1e-6)


@pytest.mark.parametrize("per_launch", quick([2, 3, 16], 3))
def test_several_supersteps_in_one_launch(per_launch):
    expected = simulated(UNEVEN, 7, 4, num_evals=3)
    actual = on_mesh(UNEVEN, "8 x 1", 7, 4, per_launch=per_launch, num_evals=3)
    close(actual.params, expected.params)
    close([p["loss"] for p in actual.evals], [p["loss"] for p in expected.evals], 1e-6)
    assert actual.merge_times.tolist() == expected.merge_times.tolist()


def test_a_task_is_learned():
    history = on_mesh(hj.local_sgd(**COMMON, local_steps=4), "8 x 1", 40, 4, task=TASK)
    assert history.best() > history.evals[0]["accuracy"]
    assert history.placement == "mesh of 8 x 1 workers"
    assert DATA.num_features == FEATURES
