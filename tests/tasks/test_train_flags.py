"""Training flags of Flax modules: found by name and set; a warning if none is found."""

import warnings

import jax
import numpy as np
import pytest
from flax import linen, nnx

from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.tasks import classification
from hetjax.tasks.train_flags import EVAL_FLAGS, TRAIN_FLAGS

FEATURES, CLASSES, EXAMPLES = 6, 3, 8


def random_data():
    rng = np.random.default_rng(0)
    x = (2 + rng.normal(size=(EXAMPLES, FEATURES))).astype(np.float32)
    split = Split(x, rng.integers(CLASSES, size=EXAMPLES).astype(np.int32))
    return Dataset(split, split, CLASSES)


DATA = random_data()
BATCH = make_batch(DATA.train, np.arange(EXAMPLES), make_buckets(DATA.train, EXAMPLES))


def run(source):
    """The class `Net` from source text, because argument names vary."""
    names = {"linen": linen, "nnx": nnx, "CLASSES": CLASSES}
    exec(source, names)
    return names["Net"]


def linen_net(flag, default=""):
    on = "not flag" if flag in TRAIN_FLAGS else "flag"
    return run(
        f"""
class Net(linen.Module):
    @linen.compact
    def __call__(self, x, {flag}{default}):
        flag = {flag}
        x = linen.BatchNorm(use_running_average={on}, momentum=0.5)(x)
        x = linen.Dropout(0.5, deterministic={on})(x)
        return linen.Dense(CLASSES)(x)
"""
    )()


def nnx_net(flag):
    on = "not flag" if flag in TRAIN_FLAGS else "flag"
    return run(
        f"""
class Net(nnx.Module):
    def __init__(self, features, classes, *, rngs):
        self.norm = nnx.BatchNorm(features, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x, {flag}={flag in EVAL_FLAGS}):
        flag = {flag}
        x = self.norm(x, use_running_average={on})
        return self.out(self.drop(x, deterministic={on}))
"""
    )


def check_switched(model, state_moves=True):
    """Dropout is on and statistics move in training only, without any warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = classification(model, DATA)
    params, state = task.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(7), 2)
    (one, after), (other, _) = (task.loss(params, state, BATCH, k) for k in keys)
    assert (one != other).any()
    moved = [
        np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
    ]
    assert (max(moved, default=0) > 0.1) == state_moves
    same = BATCH._replace(x=BATCH.x[[0] * EXAMPLES], y=BATCH.y[[0] * EXAMPLES])
    assert len(set(task.metrics(params, state, same)["loss"].tolist())) == 1
    return task.restore(params, state)


@pytest.mark.parametrize("flag", TRAIN_FLAGS + EVAL_FLAGS)
def test_a_linen_argument_is_recognized(flag):
    check_switched(linen_net(flag, f"={flag in EVAL_FLAGS}"))


@pytest.mark.parametrize("flag", ["is_training", "inference"])
def test_a_flag_without_a_default_is_recognized(flag):
    check_switched(linen_net(flag))


@pytest.mark.parametrize("flag", TRAIN_FLAGS + EVAL_FLAGS)
def test_an_nnx_argument_is_recognized(flag):
    """An explicit argument overrides the mode set by `.train()`."""
    check_switched(nnx_net(flag))


class FieldNet(linen.Module):
    """A module whose mode is a field."""

    is_training: bool = False

    @linen.compact
    def __call__(self, x):
        x = linen.BatchNorm(use_running_average=not self.is_training, momentum=0.5)(x)
        x = linen.Dropout(0.5, deterministic=not self.is_training)(x)
        return linen.Dense(CLASSES)(x)


@pytest.mark.parametrize("given", [True, False])
def test_a_linen_field_is_recognized_and_restored_in_evaluation(given):
    restored = check_switched(FieldNet(is_training=given))
    assert not restored.is_training


class Noisy(nnx.Module):
    """A submodule with its own name for the mode, and its own dropout."""

    def __init__(self, rngs):
        self.is_training = False
        self.rngs = rngs

    def __call__(self, x):
        if not self.is_training:
            return x
        return x * jax.random.bernoulli(self.rngs.dropout(), 0.5, x.shape)


class NoisyNet(nnx.Module):
    """A module with its mode in an attribute that hides nnx's method."""

    def __init__(self, features, classes, *, rngs):
        self.train = False
        self.noise = Noisy(rngs)
        self.out = nnx.Linear(features, classes, rngs=rngs)

    def __call__(self, x):
        return self.out(self.noise(x))


def test_an_nnx_attribute_is_recognized_and_restored_in_evaluation():
    restored = check_switched(NoisyNet, state_moves=False)
    assert (restored.train, restored.noise.is_training) == (False, False)


def inert(part):
    """A module with a submodule and no flag."""

    class Inert(linen.Module):
        @linen.compact
        def __call__(self, x, temperature=1.0):
            return linen.Dense(CLASSES, name="out")(part()(x)) / temperature

    return Inert()


class Block(linen.Module):
    """A module with dropout in a submodule."""

    @linen.compact
    def __call__(self, x, train=False):
        return linen.Dropout(0.5, deterministic=not train)(x)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (lambda: linen.Dropout(0.5, deterministic=True), r"Dropout \(Dropout_0\)"),
        (lambda: linen.BatchNorm(True), r"BatchNorm \(BatchNorm_0\)"),
        (Block, r"Dropout \(Block_0/Dropout_0\)"),
        (
            lambda: linen.Sequential([linen.Dense(4), linen.BatchNorm(True)]),
            r"BatchNorm \(BatchNorm_0\)",
        ),
    ],
    ids=["dropout", "norm", "below", "listed"],
)
def test_a_linen_module_without_a_flag_gives_a_warning(part, told):
    with pytest.warns(UserWarning, match=f"Inert has {told}, but no arg.*`train`") as w:
        classification(inert(part), DATA)
    assert len(w) == 1
    assert w[0].filename == __file__


@pytest.mark.parametrize(
    "part",
    [lambda: linen.Dropout(0.0, deterministic=True), linen.LayerNorm],
    ids=["dropout of nothing", "another norm"],
)
def test_a_module_that_needs_no_flag_gives_no_warning(part):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classification(inert(part), DATA)


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_an_unknown_argument_without_a_default_is_an_error(kind):
    class LinenMode(linen.Module):
        @linen.compact
        def __call__(self, x, mode):
            return linen.Dense(CLASSES)(x)

    class NnxMode(nnx.Module):
        def __init__(self, features, classes, *, rngs):
            self.out = nnx.Linear(features, classes, rngs=rngs)

        def __call__(self, x, *, mode):
            return self.out(x)

    model = LinenMode() if kind == "linen" else NnxMode
    with pytest.raises(ValueError, match="Mode.__call__ needs the argument 'mode'"):
        classification(model, DATA)
