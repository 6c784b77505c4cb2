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


KINDS = [(kind, "targets", jax.jit) for kind in SHARES]
KINDS += [("several", "repeated_targets", jax.jit), ("several", "targets", lambda f: f)]


@pytest.mark.parametrize(("kind", "targets", "variant"), KINDS)
def test_loss_and_gradients_with_given_candidates(kind, targets, variant):
    """Repeated candidates count each time, true labels among them never."""
    p = Problem(kind=kind)
    targets = getattr(p, targets)
    ids = np.array([3, 3, 0, 7, 10, 5])
    log_q = np.log(np.random.default_rng(1).uniform(0.05, 0.5, p.num))
    offsets = np.log(len(ids)) + log_q[ids]
    chosen = Candidates(jnp.asarray(ids), jnp.asarray(offsets, jnp.float32))
    layer = candidates.layer("given", lambda h, w, b, state, key: (chosen, state))
    losses, dh, dw, db, _ = variant(layer.loss_and_grads)(
        *p.arrays, (), targets, jnp.asarray(p.scale), None
    )
    # each label's offset: 0 if it is true, else -log of its summed weights
    weight = np.zeros(p.num)
    np.add.at(weight, ids, np.exp(-offsets))
    with np.errstate(divide="ignore"):
        expected = p.expected(np.where(p.t > 0, 0.0, -np.log(weight)))
    for found, other in zip((losses, dh), expected[:2], strict=True):
        close(found, other)
    for found, other in zip((dw, db), expected[2:], strict=True):
        close(sparse.dense(found), other)

    def total(h, w, b):
        values, _ = layer.losses(h, w, b, (), targets, None)
        return jnp.sum(values * p.scale)

    for found, other in zip(
        jax.grad(total, argnums=(0, 1, 2))(*p.arrays), expected[1:], strict=True
    ):
        close(found, other)


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
