"""Parts that do not fit each other are refused; parts that fit compute correctly."""

import jax
import numpy as np
import pytest
from flax import nnx

import hetjax as hj
from hetjax.machine import Arrival, Cost, Link, LocalRound, Machine, Profile
from hetjax.schedule import Actions, MergeAction, Policy
from hetjax.schedule.action_checks import check_rows

DATA = hj.data.digits()
TASK = hj.classification(hj.models.mlp(hidden=8), DATA)
SETTINGS = {"num_evals": 2, "progress": False}


def two_workers():
    """Workers with steps of 1 s and 1.5 s; links take no time."""
    workers = tuple(
        Profile(name, "cpu", Cost(seconds, 0.0))
        for name, seconds in (("a", 1.0), ("b", 1.5))
    )
    return Machine("two", workers, {"": Link(latency=0.0, bandwidth=1e12)})


def strategy(local, merge, **parts):
    policy = parts.pop("policy", hj.schedule.rounds(batch_size=8))
    return hj.Strategy(
        policy, local, merge, batch_size=8, learning_rate=0.1, name="mine", **parts
    )


def needing(*buffers):
    return hj.merge.average()._replace(requires=buffers)


@pytest.mark.parametrize(
    ("local", "merge", "message"),
    [
        (hj.local.gradient(), hj.merge.average(), "only provides grad_sum, which the"),
        (
            hj.local.sgd(),
            needing("first"),
            "mine: .* requires the unknown buffer first; known",
        ),
    ],
)
def test_a_local_update_and_a_merge_that_do_not_fit(local, merge, message):
    with pytest.raises(ValueError, match=message):
        hj.train(
            TASK, DATA, two_workers(), strategy(local, merge), seconds=1, **SETTINGS
        )


def late_second_worker():
    """a merges alone at every arrival; at its fifth arrival, at 5 s, b is started."""

    def init(infos, n):
        return 0, Actions(dispatch=((0, LocalRound(1, 8)),))

    def react(count, event):
        if not isinstance(event, Arrival):
            return count, Actions()
        dispatch = [(event.worker, LocalRound(1, 8))]
        if event.worker == 0:
            count += 1
            if count == 5:
                dispatch.append((1, LocalRound(1, 8)))
        return count, Actions((MergeAction((event.worker,)),), tuple(dispatch))

    return Policy(init, react)


def test_a_worker_that_begins_later_begins_with_the_current_model():
    """b computes from 5 s to 6.5 s; in between a merges once, at 6 s."""
    own = strategy(hj.local.sgd(), hj.merge.average(), policy=late_second_worker())
    history = hj.train(TASK, DATA, two_workers(), own, seconds=7, **SETTINGS)
    assert history.workers[1].staleness == {1: 1}


class Normalised(nnx.Module):
    """A model with batch statistics."""

    def __init__(self, features, classes, *, rngs):
        self.norm = nnx.BatchNorm(features, rngs=rngs)
        self.out = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x):
        return self.out(self.norm(x))


def trained(module, sizes):
    """One worker does one step on each of these numbers of examples."""
    own = hj.Strategy(
        hj.schedule.rounds(batch_size=sizes), hj.local.sgd(), hj.merge.average(),
        batch_size=16, learning_rate=0.1,
    )  # fmt: skip
    task = hj.classification(module, DATA)
    machine = hj.machine.preset("v100x1", noise=0.0)
    return hj.train(
        task, DATA, machine, own, seconds=0.0021, num_evals=1, progress=False
    )


def test_padding_does_not_reach_batch_statistics():
    """A batch of 10 would be padded to 11: its statistics are of the ten examples."""
    history = trained(Normalised, 10.0)
    assert sum(w.updates for w in history.workers) == 1
    assert history.workers[0].padded == 0
    rows = hj.sampling.uniform().init((), len(DATA.train), 0).order[:10]
    x = DATA.train.x[rows]
    expected = 0.99 * 0.0 + 0.01 * x.mean(0), 0.99 * 1.0 + 0.01 * x.var(0)
    statistics = history.model_state["norm"]
    np.testing.assert_allclose(statistics["mean"], expected[0], atol=1e-6)
    np.testing.assert_allclose(statistics["var"], expected[1], atol=1e-6)


def test_models_without_statistics_are_padded():
    history = trained(hj.models.mlp(hidden=8), 10.0)
    assert history.workers[0].padded == 1


def test_a_linen_weight_with_row_sparse_gradients():
    """The sparse weight of a linen module takes its shape from x."""
    from flax import linen

    class Sparse(linen.Module):
        @linen.compact
        def __call__(self, x):
            init = linen.initializers.normal(0.1)
            return hj.sparse.matmul(x, self.param("kernel", init, (x.shape[-1], 20)))

    data = hj.data.synthetic_xmc(
        rows=64, test_rows=8, features=50, labels=20, nonzeros=8.0
    )
    task = hj.classification(Sparse(), data, row_params=("kernel",))
    own = hj.sequential_sgd(batch_size=8, learning_rate=1.0)
    machine = hj.machine.preset("v100x1")
    history = hj.train(
        task, data, machine, own, seconds=0.1, num_evals=4, progress=False
    )
    assert history.params["kernel"].shape == (50, 20)
    assert history.evals[-1]["loss"] < history.evals[0]["loss"]
    assert jax.tree.leaves(history.model_state) == []


@pytest.mark.parametrize(
    "made",
    [
        hj.local_sgd(batch_size=8, learning_rate=0.1, local_steps=10**9),
        hj.biased_local_sgd(batch_size=8, learning_rate=0.1, local_steps=2**30),
        hj.easgd(batch_size=8, learning_rate=0.1, local_steps=2**22 + 1),
        hj.sma(batch_size=64, learning_rate=0.1, local_steps=2**21 + 1),
    ],
    ids=lambda made: made.name,
)
@pytest.mark.parametrize("machine", [two_workers, hj.local_machine])
def test_a_round_whose_rows_cannot_be_drawn_at_once(made, machine):
    with pytest.raises(
        ValueError, match="at most 4,194,304 steps and 134,217,728 rows"
    ):
        hj.train(TASK, DATA, machine(), made, seconds=1.0, **SETTINGS)


def test_the_longest_round_of_all():
    check_rows(LocalRound(2**21, 64.0))
    check_rows(LocalRound(2**22, 32.0))
