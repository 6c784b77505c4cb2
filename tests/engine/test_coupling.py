"""Losses that mix the examples of a batch: refused, or trained on exact batches."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import machine

import hetjax as hj
from hetjax.data import from_arrays
from hetjax.engine.programs import evaluation_batches

N, FEATURES = 17, 3


def pairs():
    """x and y of different lengths, for regression and for contrastive losses."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, FEATURES)).astype(np.float32)
    y = rng.normal(size=(N, FEATURES)).astype(np.float32)
    return from_arrays((x, y), (x, y))


def column():
    data = pairs()
    x, y = np.asarray(data.train.x), np.asarray(data.train.y)[:, 0]
    return from_arrays((x, y), (x, y))


def linear(outputs):
    return hj.from_functions(
        lambda key: jax.random.normal(key, (FEATURES, outputs)), lambda w, x: x @ w
    )


def info_nce(outputs, y):
    """-log softmax_j(z_i . y_j) at j = i: negatives are the others of the batch."""
    return -jnp.diagonal(jax.nn.log_softmax(outputs @ y.T, axis=-1))


def over_the_batch():
    apply = lambda w, x: jax.nn.softmax(x @ w, axis=0)  # noqa: E731
    return hj.from_functions(lambda key: jnp.ones((FEATURES, 1)), apply)


ONE = hj.sequential_sgd(batch_size=N, learning_rate=1e-6)


def train(task, data, strategy=ONE, on=None, **given):
    options = {"seconds": 2.0, "num_evals": 2, "progress": False, **given}
    return hj.train(task, data, on or machine(1.0), strategy, **options)


COUPLED = {
    "broadcast": lambda: hj.task(linear(1), lambda o, y: ((o - y) ** 2).mean(-1)),
    "softmax over the batch": lambda: hj.task(
        over_the_batch(), lambda o, y: (o[:, 0] - y) ** 2
    ),
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_that_mixes_examples_is_refused(name):
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match="loss of an example in evaluation changes"),
    ):
        train(COUPLED[name](), column())


def test_negatives_of_the_batch_are_refused():
    with pytest.raises(ValueError, match="set batch_coupled=True"):
        train(hj.task(linear(FEATURES), info_nce), pairs())


def test_a_loss_that_mixes_examples_in_training_alone():
    data = column()
    task = hj.task(linear(1), lambda o, y: (o[:, 0] - y) ** 2)

    def loss(params, model_state, batch, key):
        return ((batch.x @ params - batch.y) ** 2).mean(-1), model_state

    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match="loss of an example in training changes"),
    ):
        train(task._replace(loss=loss), data)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("sequential_sgd", {}), ("sync_sgd", {}), ("local_sgd", {"local_steps": 2})],
)
def test_coupled_losses_are_of_exact_batches(name, settings):
    data = pairs()
    task = hj.task(linear(FEATURES), info_nce, batch_coupled=True)
    made = hj.STRATEGIES[name](batch_size=N, learning_rate=1e-9, **settings)
    history = train(task, data, made, seconds=20.0)
    w = np.asarray(history.params, np.float64)
    scores = np.asarray(data.train.x) @ w @ np.asarray(data.train.y).T
    largest = scores.max(axis=1)
    wanted = np.log(np.exp(scores - largest[:, None]).sum(1)) + largest
    wanted = np.mean(wanted - np.diagonal(scores))
    # in training, and of the test split, which is the same
    assert history.evals[-1]["train_loss"] == pytest.approx(wanted, rel=1e-4)
    assert history.evals[-1]["loss"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("coupled", [True, False])
def test_batches_of_coupled_losses_are_not_padded(coupled):
    """Of two workers with batches of 12 and 9 examples; 9 would be padded to 10."""
    loss = info_nce if coupled else lambda o, y: ((o - y) ** 2).sum(-1)
    task = hj.task(linear(FEATURES), loss, batch_coupled=coupled)
    policy = hj.schedule.rounds(batch_size=(12, 9))
    strategy = hj.Strategy(policy, hj.local.sgd(), hj.merge.average(), 12, 0.1)
    history = train(task, pairs(), strategy, machine(1.0, 1.0), seconds=2.0)
    assert [w.padded > 0 for w in history.workers] == [False, not coupled]


def test_the_last_batch_of_a_coupled_test_split_is_exact(monkeypatch):
    """Of 17 examples in batches of 10, the last batch has 7."""
    monkeypatch.setattr(evaluation_batches, "EVAL_EXAMPLES", 10)
    split = pairs().test
    sizes = [
        [
            len(b.weight)
            for b in evaluation_batches.evaluation_batches(split, 1, exact=exact)
        ]
        for exact in (False, True)
    ]
    assert sizes == [[10, 10], [10, 7]]


def test_mixing_on_purpose_is_not_refused():
    data = hj.data.digits()
    mix = hj.tasks.augment.mixup()
    task = hj.classification(hj.models.mlp(hidden=4), data, mix=mix)
    history = train(task, data)
    assert history.merges == 2


def test_it_is_checked_once_for_a_task():
    calls, data = deque(), column()  # not a list: its contents are no setting

    def loss(outputs, y):
        calls.append(outputs.shape)
        return (outputs[:, 0] - y) ** 2

    task = hj.task(linear(1), loss)
    train(task, data)
    traced = len(calls)
    train(task, data)
    shapes = list(calls)
    assert shapes[traced:].count((4, 1)) == 0 < shapes[:traced].count((4, 1))


def before_last(losses):
    """Each example's loss also counts the one before it; the first one's does not."""
    return losses.at[1:].add(jnp.abs(losses[1:] - losses[:-1]))


HIDDEN = {
    # all outputs are equal until the first step
    "zeros": lambda: hj.task(
        hj.from_functions(lambda key: jnp.zeros((FEATURES, 1)), lambda w, x: x @ w),
        lambda o, y: (jax.nn.softmax(o[:, 0]) - y) ** 2,
    ),
    "the one before": lambda: hj.task(
        linear(1), lambda o, y: before_last((o[:, 0] - y) ** 2)
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_coupling_that_the_first_example_does_not_show(name):
    with pytest.raises(ValueError, match="loss of an example in evaluation changes"):
        train(HIDDEN[name](), column())
