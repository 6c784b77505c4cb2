"""Sampled softmax: its distributions, its loss against NumPy, and its bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from softmax_oracle import SHARES, Problem, close

from hetjax import sparse
from hetjax.output import candidates, sampled
from hetjax.output.candidates import Candidates
from hetjax.output.sampled import DISTRIBUTIONS, probabilities

COUNTS = np.array([5, 0, 40, 3, 3, 100, 1, 0, 9, 2, 7])


# candidates that repeat each other
IDS = np.array([3, 3, 0, 7, 10, 5])
LOG_Q = np.log(np.random.default_rng(1).uniform(0.05, 0.5, 11))
OFFSETS = np.log(len(IDS)) + LOG_Q[IDS]


def layer_of_these():
    chosen = Candidates(jnp.asarray(IDS), jnp.asarray(OFFSETS, jnp.float32))
    return candidates.layer("given", lambda h, w, b, state, key: (chosen, state))


def by_hand(h, w, b, targets, scale):
    """(losses, dh, dW, db) of the layer."""
    given = h, w, b, (), targets, scale, None
    losses, dh, dw, db, _ = layer_of_these().loss_and_grads(*given)
    return losses, dh, sparse.dense(dw), sparse.dense(db)


def automatic(h, w, b, targets, scale):
    """The same by `jax.grad`."""

    def total(h, w, b):
        losses, _ = layer_of_these().losses(h, w, b, (), targets, None)
        return jnp.sum(losses * scale), losses

    grads, losses = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(h, w, b)
    return losses, *grads


WAYS = {"by hand": by_hand, "automatic": automatic}
COMPILED = {name: jax.jit(way) for name, way in WAYS.items()}  # shared by the kinds
KINDS = [(kind, "targets") for kind in SHARES] + [("several", "repeated_targets")]


def check_given(way, kind, targets="targets"):
    """Repeated candidates count each time, true labels among them never."""
    p = Problem(kind=kind)
    # each label's offset: 0 if it is true, else -log of its summed weights
    weight = np.zeros(p.num)
    np.add.at(weight, IDS, np.exp(-OFFSETS))
    with np.errstate(divide="ignore"):
        expected = p.expected(np.where(p.t > 0, 0.0, -np.log(weight)))
    values = way(*p.arrays, getattr(p, targets), jnp.asarray(p.scale))
    for found, other in zip(values, expected, strict=True):
        close(found, other)


@pytest.mark.parametrize(("kind", "targets"), KINDS)
@pytest.mark.parametrize("name", WAYS)
def test_loss_and_gradients_with_given_candidates(name, kind, targets):
    check_given(COMPILED[name], kind, targets)


@pytest.mark.full  # a hundred small programs
@pytest.mark.parametrize("name", WAYS)
def test_loss_and_gradients_without_jit(name):
    check_given(WAYS[name], "several")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_probabilities(distribution):
    q = probabilities(distribution, COUNTS)
    np.testing.assert_allclose(q.sum(), 1)
    expected = {
        "uniform": np.full(11, 1 / 11),
        "frequency": (COUNTS + 1) / (COUNTS + 1).sum(),
        # ranks by hand: 100, 40, 9, 7, 5, 3, 3, 2, 1, 0, 0; ties by the smaller label
        "log_uniform": np.log1p(
            1 / (1.0 + np.array([4, 9, 1, 5, 6, 0, 8, 10, 2, 7, 3]))
        )
        / np.log(12),
    }
    np.testing.assert_allclose(q, expected[distribution])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_draws_follow_the_probabilities(distribution):
    """Each label's share of 40,000 draws, within five standard deviations."""
    n = 40_000
    found = drawn(distribution, n, seed=0)
    q = probabilities(distribution, COUNTS)
    counts = np.bincount(found.ids, minlength=len(q))
    deviations = (counts - n * q) / np.sqrt(n * q * (1 - q))
    assert np.abs(deviations).max() < 5
    np.testing.assert_allclose(found.offsets, np.log(n * q)[found.ids], atol=1e-5)


def drawn(distribution, n, seed):
    """The candidates of the layer, seen through its gradient's rows."""
    seen = []
    original = candidates._scored

    def spy(h, w, b, targets, chosen):
        seen.append(chosen)
        return original(h, w, b, targets, chosen)

    p = Problem(kind="one")
    layer = sampled(negatives=n, distribution=distribution)(COUNTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_scored", spy)
        layer.losses(*p.arrays, (), p.targets, jax.random.key(seed))
    return seen[0]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_unbiased_as_the_number_of_negatives_grows(distribution):
    """The mean of 400 estimates: exact denominators, losses up to O(1 / negatives).

    The denominator's estimate is unbiased at any number of negatives: its mean is
    within four standard errors. By Jensen's inequality the loss is too small, by about
    variance / 2 of the relative error, which falls as 1 / negatives: its bias with 256
    is under an eighth of that with 8, plus four standard errors.
    """
    p = Problem(3, size=4, labels=11)
    exact = p.expected()[0]
    bias, error = {}, {}
    for negatives in (8, 256):
        layer = sampled(negatives=negatives, distribution=distribution)(COUNTS)

        def losses(key, layer=layer):
            return layer.losses(*p.arrays, (), p.targets, key)[0]

        keys = jax.random.split(jax.random.key(7), 400)
        found = np.asarray(jax.jit(jax.vmap(losses))(keys), np.float64)
        # loss = log(denominator) - sum t z, where there are labels
        ratio = np.exp(found - exact) - 1
        errors = ratio.std(0) / np.sqrt(len(keys)) + 1e-6
        assert (np.abs(ratio.mean(0)) < 4 * errors).all()
        bias[negatives] = np.abs(found.mean(0) - exact)
        error[negatives] = found.std(0) / np.sqrt(len(keys)) + 1e-6
    assert (bias[256] < bias[8] / 8 + 4 * error[256]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"negatives": 0}, "negatives=0"),
        ({"distribution": "zipf"}, "distribution='zipf'"),
    ],
    ids=["none", "unknown"],
)
def test_settings_that_cannot_be_meant(settings, message):
    with pytest.raises(ValueError, match=message):
        sampled(**settings)
