"""The heavy models, cut down: families of strategies on clock and threads, statistics.

What single strategies do is tested elsewhere, and a strategy sees no more of a model
than trees of arrays. Here one model meets all families, every model at least one on the
clock, and one with batch statistics and one of tokens, with dropout, meet threads.
"""

import jax
import numpy as np
import optax
import pytest

import hetjax as hj
from hetjax import models

pytestmark = pytest.mark.full  # every model is compiled for several strategies
B, C, IMAGE = 8, 4, (16, 16, 3)
TEXT = 12  # tokens

# name -> (builder, inputs: images or tokens)
SMALL = {
    "resnet50": (models.resnet50(image=IMAGE, blocks=(1, 1), width=4), "images"),
    "resnet101 crossbow, bf16, remat": (
        models.resnet101(
            image=IMAGE,
            blocks=(1, 2),
            width=4,
            variant="crossbow",
            dtype="bfloat16",
            remat=True,
        ),
        "images",
    ),
    "wide_resnet": (models.wide_resnet(depth=10, widen=1, image=IMAGE), "images"),
    "vit": (
        models.vit(size=(2, 16, 2, 32), patch=8, image=IMAGE, dropout=0.1),
        "images",
    ),
    "vit bf16, remat": (
        models.vit(
            size=(2, 16, 2, 32), patch=8, image=IMAGE, dtype="bfloat16", remat=True
        ),
        "images",
    ),
    "distilbert": (
        models.distilbert(
            layers=2, width=16, heads=2, hidden=32, vocabulary=50, positions=TEXT
        ),
        "tokens",
    ),
}


def data_of(kind, number=64):
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(number) % C).astype(np.int32)
    if kind == "images":
        x = rng.integers(0, 256, (number, *IMAGE)).astype(np.uint8)
    else:
        x = rng.integers(1, 50, (number, TEXT)).astype(np.uint16)
        x[:, TEXT - 3 :] = 0  # padding
    return hj.data.from_arrays((x, y), (x, y), num_classes=C)


def task_of(name, data):
    build, kind = SMALL[name]
    normalize = (127.5, 64.0) if kind == "images" else None
    return hj.classification(build, data, normalize=normalize)


def strategies():
    common = {"batch_size": B, "learning_rate": 0.01}
    return {
        "synchronous": hj.sync_sgd(**common),
        "tree": hj.hier_sgd(**common, levels=(2,), local_steps=(1, 2)),
        "asynchronous": hj.async_sgd(**common),
        "adaptive": hj.adaptive_sgd(**common, mega_batch=4 * B),
    }


def check_trained(history, start):
    """The model has moved, all of it is finite, and parameters are float32."""
    assert sum(worker.updates for worker in history.workers) > 0
    for leaf in jax.tree.leaves((history.params, history.model_state)):
        assert np.isfinite(leaf).all()
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(history.params)} == {"float32"}
    moved = jax.tree.map(lambda a, b: (a != b).any(), history.params, start[0])
    assert np.mean(jax.tree.leaves(moved)) > 0.8
    for old, new in zip(
        jax.tree.leaves(start[1]), jax.tree.leaves(history.model_state), strict=True
    ):
        assert (old != new).any()  # batch statistics


MACHINES = {
    "clock": lambda: hj.machine.preset("uniform:4"),
    "threads": lambda: hj.local_machine(
        ["cpu:0"], workers_per_device=4, step_mode="dispatch"
    ),
}
SECONDS = {"clock": 0.05, "threads": 60.0}  # at most: on threads EPOCHS end a run
EPOCHS = 2


FAMILIES = ("synchronous", "tree", "asynchronous", "adaptive")
RUNS = [
    ("resnet50", "clock", FAMILIES),
    ("resnet101 crossbow, bf16, remat", "clock", ("tree",)),
    ("wide_resnet", "clock", ("asynchronous",)),
    ("vit", "clock", ("adaptive",)),
    ("vit bf16, remat", "clock", ("synchronous",)),
    ("distilbert", "clock", ("asynchronous",)),
    ("wide_resnet", "threads", ("tree",)),
    ("distilbert", "threads", ("asynchronous",)),
]


@pytest.mark.parametrize(("name", "kind", "families"), RUNS)
def test_it_trains(name, kind, families):
    data = data_of(SMALL[name][1])
    task = task_of(name, data)
    every = strategies()
    assert set(every) == set(FAMILIES)
    comparison = hj.compare(
        task,
        data,
        MACHINES[kind](),
        {family: every[family] for family in families},
        seconds=SECONDS[kind],
        epochs=EPOCHS,
        num_evals=200 if kind == "threads" else 1,
        progress=False,
    )
    start = jax.jit(task.init)(jax.random.key(0))
    assert len(comparison.histories) == len(families)
    for history in comparison.histories:
        check_trained(history, start)


# of the two ResNets and the two ViTs one each, of which one is in bfloat16 with remat
LEARNING = ("resnet101 crossbow, bf16, remat", "wide_resnet", "vit", "distilbert")


@pytest.mark.parametrize("name", LEARNING)
def test_it_learns_64_examples_by_heart(name):
    data = data_of(SMALL[name][1])
    strategy = hj.sequential_sgd(batch_size=32, optimizer=optax.adam(3e-3))
    history = hj.train(
        task_of(name, data),
        data,
        hj.machine.preset("v100x1"),
        strategy,
        seconds=0.6,
        num_evals=30,
        target=1.0,
        progress=False,
    )
    assert history.best() == 1.0


# --- batch statistics -----------------------------------------------------------------


class Recorded:
    """Rows of images that remember which of them were read."""

    def __init__(self, x):
        self.x, self.read = x, []
        self.shape, self.dtype, self.ndim = x.shape, x.dtype, x.ndim

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read.append(np.ravel(np.arange(len(self))[index]))
        return self.x[index]


def convolved(x, kernel, stride, padding):
    """A convolution in NumPy, [B, H, W, C] to [B, H', W', D], in float64."""
    size = kernel.shape[0]
    pad = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    x = np.pad(x.astype(np.float64), pad)
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))
    windows = windows[:, ::stride, ::stride]
    return np.einsum("bhwcij,ijcd->bhwd", windows, kernel.astype(np.float64))


def statistics_of(name, params, x):
    """Mean and variance of the first normalization's inputs."""
    if name == "wide_resnet":  # its first convolution is not normalized
        y = convolved(x, np.asarray(params["layers"][1]["kernel"]), 1, 1)
    else:
        y = convolved(x, np.asarray(params["conv"]["kernel"]), 2, 3)
    return y.mean((0, 1, 2)), y.var((0, 1, 2))


def first_norm(name, state):
    """The running statistics of the same normalization."""
    if name == "wide_resnet":
        return state["layers"][2]["branch"]["layers"][0]["layers"][0]
    return state["norm"]


@pytest.mark.parametrize(
    ("name", "workers"), [("resnet50", 1), ("resnet50", 3), ("wide_resnet", 3)]
)
def test_statistics_of_a_round_are_those_of_an_oracle(name, workers):
    """Each worker makes one step from the same model; the merge takes the mean.

    Running statistics r start at 0 and 1, and become .9 r + .1 (the batch's own).
    """
    data = data_of("images")
    x = data.train.x
    seen = Recorded(x)
    train = hj.data.Split(seen, data.train.y)
    data = hj.data.Dataset(train, data.test, C)
    task = task_of(name, data)
    seen.read.clear()
    params, start = jax.jit(task.init)(jax.random.key(0))
    strategy = hj.local_sgd(batch_size=B, learning_rate=1e-6, local_steps=1)
    step = hj.machine.preset("uniform:1").workers[0].cost.seconds(B)
    history = hj.train(
        task,
        data,
        hj.machine.preset(f"uniform:{workers}", noise=0.0),
        strategy,
        seconds=1.9 * step,  # one round: the second one does not end
        num_evals=1,
        progress=False,
    )
    assert [worker.updates for worker in history.workers] == [1] * workers
    # before the run, `train` looks at the first rows; a second round is begun
    first = np.arange(B)
    drawn = [r for r in seen.read if len(r) == B and not np.array_equal(r, first)]
    rows = drawn[:workers]
    inputs = [(x[r].astype(np.float32) - 127.5) / 64 for r in rows]
    found = [statistics_of(name, params, i) for i in inputs]
    mean, var = (np.mean(part, axis=0) for part in zip(*found, strict=True))
    norm = first_norm(name, history.model_state)
    np.testing.assert_allclose(norm["mean"], 0.1 * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm["var"], 0.9 + 0.1 * var, rtol=1e-4)
    assert np.ptp([m for m, _ in found], axis=0).max() > 0 or workers == 1
    np.testing.assert_array_equal(first_norm(name, start)["mean"], 0)
