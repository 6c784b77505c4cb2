"""Tasks and models of wrong shapes are refused before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from flax import linen, nnx

import hetjax as hj
from hetjax.data import from_arrays
from hetjax.models import sparse_mlp
from hetjax.tasks import classification, from_functions
from hetjax.tasks.task_checks import check_task

N, FEATURES, CLASSES = 27, 4, 3


def dense_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, FEATURES)).astype(np.float32)
    y = np.arange(N) % CLASSES
    return from_arrays((x, y), (x[:5], y[:5]), num_classes=CLASSES)


DATA = dense_data()


def squares(params, batch):
    return (jnp.asarray(batch.x) @ params["w"] - 1.0) ** 2


def own_task(*, of_loss=lambda x: x, of_metric=lambda x: x, **changes):
    """A hand-written regression; `loss` and `metrics` may be replaced."""

    def loss(params, model_state, batch, key):
        return of_loss(squares(params, batch)), model_state

    def metrics(params, model_state, batch):
        losses = squares(params, batch)
        return {"loss": losses, "closeness": of_metric(-losses)}

    init = lambda key: ({"w": jnp.zeros(FEATURES)}, ())  # noqa: E731
    return hj.Task(init, loss, metrics, "closeness")._replace(**changes)


def with_loss(loss):
    return own_task(loss=lambda params, state, batch, key: loss(params, state, batch))


def with_metrics(metrics):
    return own_task(metrics=lambda params, state, batch: metrics(params, batch))


WRONG_TASKS = [
    (own_task(of_loss=jnp.mean), r"loss is a scalar, \[\] for a batch of 10 .*\[10\]"),
    (own_task(of_loss=lambda x: x[:, None]), r"loss is \[10, 1\] of float32 for a"),
    (own_task(of_loss=lambda x: x[:1]), r"loss is \[1\] of float32 for a batch of 10"),
    (own_task(of_loss=lambda x: x.astype(int)), "losses are int32: return floats"),
    (own_task(of_loss=lambda x: None), "the task's loss is a NoneType for a batch"),
    (with_loss(lambda p, s, b: squares(p, b)), r"loss returns \[10\] of float32: ret"),
    (
        with_loss(lambda p, s, b: (squares(p, b), s, {})),
        r"loss returns a tuple: return a pair \(losses \[B\], model_state\)",
    ),
    (own_task(of_metric=jnp.mean), r"metric 'closeness' is a scalar, \[\] for a batch"),
    (own_task(of_metric=lambda x: x[:, None]), r"metric 'closeness' is \[10, 1\]"),
    (own_task(of_metric=lambda x: 3.0), "metric 'closeness' is a scalar"),
    (
        own_task(metric="accuracy"),
        "have no 'accuracy' .they have closeness, loss.: return it",
    ),
    (
        with_metrics(lambda p, b: {"closeness": squares(p, b)}),
        "the task's metrics have no 'loss' .they have closeness",
    ),
    (
        own_task(init=lambda key: ({"w": jnp.zeros(FEATURES, jnp.complex64)}, ())),
        "the parameter 'w' is complex64: complex numbers are not supported; store",
    ),
    (
        own_task(init=lambda key: ({"w": jnp.zeros(FEATURES), "n": {"k": 1}}, ())),
        "the parameter 'n/k' is int32, which has no gradient: make it floating",
    ),
    (
        own_task(init=lambda key: ({"w": jnp.zeros(FEATURES)}, {"phase": 1j})),
        "the model state 'phase' is complex64: complex numbers",
    ),
    (with_metrics(squares), r"metrics are \[10\] of float32: return a dictionary"),
]


@pytest.mark.parametrize(
    ("task", "message"), WRONG_TASKS, ids=[m[:25] for _, m in WRONG_TASKS]
)
def test_a_task_of_wrong_shapes_is_refused(task, message):
    with pytest.raises(ValueError, match=message):
        check_task(task, DATA, 10)


@pytest.mark.parametrize("batch_size", [1, 2, 10, 27])
def test_a_task_of_right_shapes_is_accepted(batch_size):
    check_task(own_task(), DATA, batch_size)


@pytest.mark.parametrize("multilabel", [True, False])
def test_sparse_tasks_are_checked_as_a_step_calls_them(multilabel):
    data = hj.data.synthetic_xmc(
        rows=32, test_rows=8, features=40, labels=12, nonzeros=5.0
    )
    if not multilabel:
        y = np.arange(32) % 12
        data = from_arrays((data.train.x, y), (data.test.x, y[:8]), num_classes=12)
    check_task(classification(sparse_mlp(hidden=3), data), data, 8)


# --- logits -----------------------------------------------------------------------


class Wide(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.classes)(x)


def functions(classes):
    return from_functions(
        lambda key: {"w": jax.random.normal(key, (FEATURES, classes))},
        lambda params, x: jnp.asarray(x) @ params["w"],
    )


def built(classes):
    return lambda features, _, *, rngs: hj.models.mlp(hidden=3)(
        features, classes, rngs=rngs
    )


MODELS = {"linen": Wide, "functions": functions, "nnx": built}


@pytest.mark.parametrize("logits", [1, 2, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_logits_must_fit_the_classes(kind, logits):
    message = (
        rf"returns \[2, {logits}\] of .*: return logits \[B, 3\], as the data have 3 cl"
    )
    with pytest.raises(ValueError, match=message):
        classification(MODELS[kind](logits), DATA)
    classification(MODELS[kind](3), DATA)


def test_logits_must_fit_the_labels():
    data = hj.data.synthetic_xmc(
        rows=32, test_rows=8, features=40, labels=12, nonzeros=5.0
    )
    assert sp.issparse(data.train.y)
    model = lambda features, _, *, rngs: sparse_mlp(hidden=3)(features, 11, rngs=rngs)  # noqa: E731
    with pytest.raises(
        ValueError, match=r"returns \[2, 11\] of .*: return logits \[B, 12\], as the"
    ):
        classification(model, data)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda x: x.sum(), r"scalar, \[\] for a batch of 2 .* have 3 classes"),
        (lambda x: x[:, 0], r"\[2\] of float32 for a batch of 2"),
        (lambda x: x[:1, :3], r"\[1, 3\] of float32 for a batch of 2"),
        (lambda x: x[:, None, :3], r"\[2, 1, 3\] of float32 for a batch of 2"),
        (lambda x: {"logits": x}, r"a dict for a batch of 2 .* return logits \[B, 3\]"),
    ],
)
def test_outputs_must_be_logits(outputs, message):
    model = from_functions(lambda key: (), lambda params, x: outputs(jnp.asarray(x)))
    with pytest.raises(ValueError, match=message):
        classification(model, DATA)


def test_a_dense_layer_on_sparse_inputs():
    """Flax would say that an array element is set with a sequence."""
    data = hj.data.synthetic_xmc(
        rows=32, test_rows=8, features=40, labels=12, nonzeros=5.0
    )
    with pytest.raises(ValueError, match=r"sparse inputs of .*use hetjax\.models\.sp"):
        classification(built(12), data)


class OfWidth(nnx.Module):
    """A linear layer for inputs of a width that may be wrong."""

    def __init__(self, width, outputs, rngs):
        self.linear = nnx.Linear(width, outputs, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


REFUSED = r"a batch of 2 examples of .*, x \[2, 4\] of float32: .*\(4,\) and \(5,\)"


def test_a_task_that_was_made_for_other_data():
    x = np.zeros((4, 3), np.float32)
    other = from_arrays((x, np.arange(4) % 2), (x, np.arange(4) % 2))
    task = classification(hj.models.mlp(hidden=2), dense_data())
    with pytest.raises(ValueError, match="arrays, x .4, 3. of float32.*for other data"):
        check_task(task, other, 4)


def test_a_loss_that_fails_without_a_message():
    def loss(params, model_state, batch, key):
        raise TypeError

    with pytest.raises(ValueError, match="loss fails on a batch of .*: TypeError; was"):
        check_task(own_task()._replace(loss=loss), dense_data(), 4)


def test_a_model_for_inputs_of_another_width():
    with pytest.raises(ValueError, match=REFUSED):
        classification(OfWidth(5, CLASSES, nnx.Rngs(0)), DATA)


def test_a_model_for_inputs_of_another_width_in_regression():
    values = hj.data.from_arrays(
        (DATA.train.x, np.zeros(N, np.float32)), (DATA.test.x, np.zeros(5, np.float32))
    )
    with pytest.raises(ValueError, match=REFUSED):
        hj.regression(OfWidth(5, 1, nnx.Rngs(0)), values)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (OfWidth, ""),
        (lambda features, classes, *, rngs: OfWidth(features, classes, rngs), ""),
        (lambda features, rngs: OfWidth(features, 3, rngs), "multiple values for"),
        (lambda features, classes: None, "unexpected keyword argument 'rngs'"),
        (type("Narrow", (nnx.Module,), {"__init__": lambda self, rngs: None}), "multi"),
    ],
)
def test_what_builds_a_model_takes_sizes_and_rngs(build, why):
    if not why:
        classification(build, DATA)
        return
    with pytest.raises(ValueError, match=rf"built as .*4, 3, rngs=.*{why}.*wrap it"):
        classification(build, DATA)
