"""Multi-layer perceptrons: sizes, initial scales, the row weight, errors."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from hetjax import models
from hetjax.data.dataset import Dataset, Split
from hetjax.tasks import classification
from hetjax.tree import size

F, H, C = 500, 64, 300


def params_of(builder, features=F, classes=C):
    model = builder(features, classes, rngs=nnx.Rngs(0))
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@functools.cache
def drawn(init="slide"):
    """The initial parameters of the sparse model."""
    builder = models.sparse_mlp(hidden=H, init=init)
    return jax.jit(lambda: params_of(builder))()


def test_parameter_counts():
    bare = jax.eval_shape(lambda: params_of(models.sparse_mlp(hidden=H, bias=False)))
    assert bare.keys() == {"kernel_in", "kernel_out"}
    assert sum(x.size for x in bare.values()) == F * H + H * C
    assert size(drawn()) == F * H + H + H * C + C


def test_the_size_of_the_paper_without_biases():
    """Adaptive SGD: 103.2M parameters for Amazon-670k."""
    builder = models.sparse_mlp(bias=False)
    shapes = jax.eval_shape(lambda: params_of(builder, 135_909, 670_091))
    assert round(sum(x.size for x in shapes.values()) / 1e6, 1) == 103.2


T = 24  # floor(sqrt(F + H)) + 1
# A normal of unit scale cut off at two is narrower:
# 1 - 4 phi(2) / (Phi(2) - Phi(-2)) is its variance.
CUT = (1 - 4 * 0.0539910 / 0.9544997) ** 0.5


@pytest.mark.parametrize(
    ("init", "scale_in", "scale_out"),
    [
        ("slide", 2 / (F + H) ** 0.5 * CUT, 2 / (H + C) ** 0.5 * CUT),
        ("hetero", (2 * T / (F + H)) ** 0.5, (2 * T / (H + C)) ** 0.5),
    ],
    ids=["slide", "hetero"],
)
def test_initial_standard_deviations(init, scale_in, scale_out):
    params = drawn(init)
    for name, scale in (
        ("kernel_in", scale_in),
        ("kernel_out", scale_out),
        ("bias_in", scale_in),
        ("bias_out", scale_out),
    ):
        x = np.asarray(params[name], np.float64)
        # three times the deviation of a standard deviation of n samples
        error = 3 / (2 * x.size) ** 0.5
        np.testing.assert_allclose(x.std(), scale, rtol=error, err_msg=name)
        assert abs(x.mean()) < 2**0.5 * error * scale
        if init == "slide":
            assert abs(x).max() <= 2 * scale / CUT * (1 + 1e-6)


def test_every_weight_has_its_own_key():
    params = drawn()
    common = min(params["kernel_in"].size, params["kernel_out"].size)
    flat = [np.ravel(params[k])[:common] for k in ("kernel_in", "kernel_out")]
    assert abs(np.corrcoef(*flat)[0, 1]) < 0.05


def test_the_row_weight_is_found():
    x = np.ones((2, F), np.float32)
    split = Split(x, np.zeros(2, np.int32))
    data = Dataset(split, split, C)
    assert classification(models.sparse_mlp(), data).row_params == ("kernel_in",)
    assert classification(models.mlp(), data).row_params == ()


@pytest.mark.parametrize(
    ("hidden", "widths"), [(16, (16,)), ((8, 4), (8, 4)), ([8], (8,)), ((), ())]
)
def test_mlp_has_the_widths_it_was_given(hidden, widths):
    def outputs(x):
        model = models.mlp(hidden=hidden)(12, 5, rngs=nnx.Rngs(0))
        return model(x), [layer.kernel[...] for layer in model.layers]

    x = np.ones((3, 2, 6), np.float32)  # inputs are flattened
    logits, kernels = jax.eval_shape(outputs, x)
    sizes = (12, *widths, 5)
    assert [k.shape for k in kernels] == list(zip(sizes[:-1], sizes[1:], strict=True))
    assert logits.shape == (3, 5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.sparse_mlp(hidden=0), "hidden=0.*at least (1|one)"),
        (lambda: models.sparse_mlp(init="he"), "init='he'.*slide.*hetero"),
        (lambda: models.mlp(hidden=0), "hidden=0.*at least (1|one)"),
        (lambda: models.mlp(hidden=(8, 0)), "hidden=.*of at least 1"),
    ],
)
def test_invalid_models_are_errors(make, words):
    with pytest.raises(ValueError, match=words):
        make()
