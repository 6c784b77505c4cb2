"""The formulas on their own, over seeds, numbers of members and inactive members.

Expected values come from NumPy in float64; tolerances are a few float32 roundings of
terms of size one.
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import optax
import pytest

from hetjax import formulas, local, merge
from hetjax.merge.formulas.weights import momentum_norm
from hetjax.replica import Replica
from hetjax.tree import all_finite, num_bytes

SHAPES = {
    "scalar": jax.ShapeDtypeStruct((), jnp.float32),
    "matrices": [jax.ShapeDtypeStruct((2, 3), jnp.float32)],
}
CASES = [(seed, inactive) for seed in (0, 1, 2) for inactive in ("none", "some", "one")]


def plain(function):
    """As it is: without jit."""
    return function


# every number of members once, compiled or not
SIZES = pytest.mark.parametrize(
    ("n", "variant"), [(1, plain), (2, jax.jit), (5, plain), (9, jax.jit)]
)


class Members:
    """n random trees, also as float64 rows; some members may be inactive."""

    def __init__(self, seed, inactive, n):
        self.rng = np.random.default_rng(seed)
        self.trees = tuple(cases.random(self.rng, SHAPES) for _ in range(n))
        self.center, self.velocity = (cases.random(self.rng, SHAPES) for _ in "zv")
        here = np.ones(n, bool)
        if inactive == "some":
            here = self.rng.uniform(size=n) < 0.5
        elif inactive == "one":
            here[self.rng.integers(n)] = False
        self.here = here
        self.rows = np.stack([flat(t) for t in self.trees])
        self.given = tuple(
            t if h else cases.broken(t) for t, h in zip(self.trees, here, strict=True)
        )

    def numbers(self, low=0.1, high=3.0):
        return self.rng.uniform(low, high, len(self.trees)).astype(np.float32)


def flat(tree):
    leaves = [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def close(actual, expected, case):
    np.testing.assert_allclose(
        actual, expected, rtol=5e-6, atol=5e-6, err_msg=str(case)
    )


def proportional(raw, here):
    raw = np.where(here, raw, 0.0).astype(np.float64)
    return raw / (raw.sum() or 1.0)


@SIZES
def test_weights(n, variant):
    proportional_weights, bias_weights, angle_weights, accuracy_weights = map(
        variant,
        (
            formulas.proportional_weights,
            formulas.bias_weights,
            formulas.angle_weights,
            formulas.accuracy_weights,
        ),
    )
    for case in CASES:
        m = Members(*case, n)
        raw = m.numbers()
        alpha = proportional_weights(raw, m.here)
        close(alpha, proportional(raw, m.here), case)
        # inactive: exactly zero
        assert not np.asarray(alpha)[~m.here].any(), case
        steps = m.rng.integers(1, 40, n)
        close(bias_weights(steps, m.here), proportional(steps, m.here), case)
        psi = angle_weights(raw, present=m.here)
        f = 5 * (1 - np.exp(-np.exp(-5 * (raw.astype(np.float64) - 1))))
        close(psi, proportional(np.exp(f), m.here), case)
        # a power of the accuracies times shares
        acc = accuracy_weights(raw, steps, power=2.0, present=m.here)
        close(acc, proportional(raw.astype(np.float64) ** 2 * steps, m.here), case)


@SIZES
def test_algorithm_2(n, variant):
    weigh = variant(formulas.normalized_weights)
    for case in itertools.product(CASES, (0.0, 0.3), (True, False)):
        which, delta, met = case
        m = Members(*which, n)
        u, b = m.rng.integers(1, 5, n), m.numbers(1, 9)
        norms = m.numbers(0.0, 0.9) + (0 if met else 1)
        actual = weigh(u, b, norms=norms, delta=delta, threshold=1.0, present=m.here)
        seen = u[m.here]
        alpha = proportional(
            b if not np.ptp([0] if not len(seen) else seen) else u, m.here
        )
        if met and m.here.any() and np.ptp(seen):
            u_here = np.where(m.here, u, -1)
            alpha[np.argmax(u_here)] *= 1 + delta
            alpha[np.argmin(np.where(m.here, u, 99))] *= 1 - delta
        close(actual, alpha, case)


@SIZES
def test_weighted_mean(n, variant):
    weighted_mean = variant(formulas.weighted_mean)
    for case in CASES:
        m = Members(*case, n)
        weights = np.where(m.here, m.numbers(), 0)
        mean = weighted_mean(m.given, weights)
        if m.here.any():
            close(flat(mean), proportional(weights, m.here) @ m.rows, case)
        same = weighted_mean((m.center,) * n, weights + 1)
        chex.assert_trees_all_equal(same, m.center)


@SIZES
def test_momentum_mean(n, variant):
    momentum_mean = variant(formulas.momentum_mean)
    for case in CASES:
        m = Members(*case, n)
        weights = np.where(m.here, m.numbers(0.1, 0.5), 0)
        new, previous = momentum_mean(
            m.center, m.velocity, m.given, weights, momentum=0.7
        )
        w, w_p = flat(m.center), flat(m.velocity)
        if not m.here.any():
            chex.assert_trees_all_equal((new, previous), (m.center, m.velocity))
            continue
        expected = weights.astype(np.float64) @ m.rows + 0.7 * (w - w_p)
        close(flat(new), expected, case)
        chex.assert_trees_all_equal(previous, m.center)


@SIZES
def test_sma(n, variant):
    correct = variant(formulas.sma_correction)
    for case in CASES:
        m = Members(*case, n)
        state = (m.center, m.velocity)
        z, v, after = correct(*state, m.given, alpha=0.3, momentum=0.6, present=m.here)
        if not m.here.any():
            chex.assert_trees_all_equal((z, v), state)
            continue
        c = 0.3 * (m.rows - flat(m.center)) * m.here[:, None]
        velocity = c.sum(0) + 0.6 * flat(m.velocity)
        close(flat(v), velocity, case)
        close(flat(z), flat(m.center) + velocity, case)
        for row, move, tree, given, here in zip(
            m.rows, c, after, m.given, m.here, strict=True
        ):
            if here:
                close(flat(tree), row - move, case)
            else:
                chex.assert_trees_all_equal(tree, given)


@pytest.mark.parametrize(("n", "variant"), [(2, jax.jit), (5, plain)])
def test_moves(n, variant):
    functions = (
        formulas.elastic_move,
        formulas.pair_average,
        formulas.gradient_sum_step,
        formulas.mean_correction,
        formulas.nova_step,
    )
    elastic, average, sum_step, mean_correction, nova = map(variant, functions)
    for seed in (0, 1, 2):
        m = Members(seed, "none", n)
        (x, *_), z, g = m.trees, m.center, m.velocity
        center, tree = elastic(z, x, 0.3)
        close(flat(center), flat(z) + 0.3 * (flat(x) - flat(z)), seed)
        close(flat(center) + flat(tree), flat(z) + flat(x), seed)
        first, second = average(x, z, g, 0.1)
        close(flat(second), (flat(x) + flat(z)) / 2, seed)
        close(flat(first), flat(second) - 0.1 * flat(g), seed)
        stepped, total = sum_step(z, m.trees, 0.1)
        close(flat(total), m.rows.sum(0), seed)
        close(flat(stepped), flat(z) - 0.1 * m.rows.sum(0), seed)
        mean, moved = mean_correction(z, m.trees, alpha=0.1)
        close(flat(mean), m.rows.mean(0), seed)
        close(flat(moved[0]), 0.9 * m.rows[0] + 0.1 * m.rows.mean(0), seed)
        w, buffer = nova(
            z, g, m.trees, np.full(n, 1 / n), learning_rate=0.5, server_momentum=0.4
        )
        buf = 0.4 * flat(g) + (flat(z) - m.rows.mean(0)) / 0.5
        close(flat(buffer), buf, seed)
        close(flat(w), flat(z) - 0.5 * buf, seed)


@pytest.mark.parametrize("variant", [plain, jax.jit])
def test_magma_steps(variant):
    steps = variant(formulas.magma_steps)
    for n, beta in itertools.product((0, 1, 7, 200), (0.0, 0.5, 0.99)):
        w, z = steps(
            {"w": jnp.float32(2.0)},
            {"w": jnp.float32(-0.7)},
            {"w": jnp.float32(1.8)},
            num_steps=float(n),
            num_slaves=3,
            learning_rate=0.03,
            momentum=beta,
        )
        w64, z64 = 2.0, -0.7
        for _ in range(n):
            z64 = beta * z64 + (1 - beta) * 0.6
            w64 -= 0.03 * z64
        np.testing.assert_allclose(
            (w["w"], z["w"]), (w64, z64), rtol=3e-5, err_msg=f"{n}, {beta}"
        )


def test_settings_under_vmap():
    """One program for several settings equals one call per setting."""
    m = Members(0, "some", 4)
    alphas, momenta = np.float32([0.1, 0.4]), np.float32([0.0, 0.9])

    def sma(alpha, momentum):
        return formulas.sma_correction(
            m.center,
            m.velocity,
            m.trees,
            alpha=alpha,
            momentum=momentum,
            present=m.here,
        )

    def several(alpha, momentum):
        return (
            sma(alpha, momentum),
            formulas.elastic_move(m.center, m.velocity, alpha),
            formulas.nova_weights([1, 32, 4, 9], momentum=momentum),
            formulas.normalized_weights(
                [1, 3, 4, 9], [1] * 4, norms=[0] * 4, delta=alpha
            ),
            formulas.angle_weights([0.2, 1.0, 0.4, 2.0], alpha=alpha),
        )

    together = jax.jit(jax.vmap(several))(alphas, momenta)
    one_by_one = jax.jit(several)
    for k in range(2):
        one = one_by_one(alphas[k], momenta[k])
        chex.assert_trees_all_close(
            jax.tree.map(lambda x, k=k: x[k], together), one, rtol=2e-6, atol=2e-6
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda a: merge.sma(alpha=a),
        lambda a: merge.average(momentum=a),
        lambda a: merge.normalized(momentum=a, delta=a, perturbation_threshold=9.0),
        lambda a: merge.fed_nova(server_momentum=a),
        lambda a: merge.replica_mean(alpha=a),
    ],
    ids=["sma", "average", "normalized", "fed_nova", "replica_mean"],
)
def test_factories_under_vmap(make):
    """A merge's settings may be traced values, too."""
    m = Members(1, "none", 3)
    replicas = tuple(cases.Replica(t, carry={"prev_params": t}) for t in m.trees)
    stats = merge.stats([3, 1, 2])

    def merged(setting):
        merging = make(setting)
        state = merging.init(m.center)
        state, _ = merging.apply(state, replicas, stats)
        state, after = merging.apply(state, replicas, stats)
        return merging.model(state)[0], after[0].params

    settings = (0.2, 0.7)
    together = jax.jit(jax.vmap(merged))(np.float32(settings))
    for k, setting in enumerate(settings):
        # a Python number, which the factory checks
        one = jax.jit(lambda s=setting: merged(s))()
        chex.assert_trees_all_close(
            jax.tree.map(lambda x, k=k: x[k], together), one, rtol=5e-6, atol=5e-6
        )


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 1 - 1e-6])
def test_fed_nova_s_norm_of_momentum_does_not_cancel(rho):
    """Against sum_s (1 - rho^s) / (1 - rho) in float64, step by step."""
    taus = np.array([1, 2, 3, 5, 9, 10, 11, 32, 99, 101, 500, 1000, 4000])
    total, counter, exact = 0.0, 0.0, {}
    for s in range(1, taus.max() + 1):
        counter = rho * counter + 1
        total += counter
        exact[s] = total
    expected = np.array([exact[t] for t in taus])
    actual = momentum_norm(jnp.asarray(taus, jnp.float32), rho)
    np.testing.assert_allclose(actual, expected, rtol=1.5e-6)


def test_fed_nova_s_weights_at_a_momentum_near_one():
    """Steps (1, 32), rho = .999: where the difference cancels, a is off by 1.2e-2."""
    a = [1.0, sum((1 - 0.999**s) / (1 - 0.999) for s in range(1, 33))]
    expected = sum(a) / 2 * np.array([0.5, 0.5]) / a
    actual = formulas.nova_weights([1, 32], momentum=0.999)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_weights_unchanged_by_delta_are_not_counted():
    merging = merge.normalized(delta=0.0, perturbation_threshold=1e9)
    state = merging.init(jnp.ones(2))
    replicas = (cases.Replica(jnp.ones(2)),) * 2
    state, _ = merging.apply(state, replicas, merge.stats([3, 1]))
    assert merging.report(state) == {"condition_met": 1, "weights_changed": 0}


def test_optimizer_step_scales_by_the_learning_rate():
    tx = optax.adam(1.0)
    params = {"w": jnp.ones(3)}
    moved, state = formulas.optimizer_step(tx, params, tx.init(params), params, 0.1)
    np.testing.assert_allclose(moved["w"], 0.9, rtol=1e-5)
    assert int(state[0].count) == 1


# worker statistics


def test_default_statistics():
    stats = merge.stats(local_steps=[8, 4], batch_size=3)
    named = {k: np.asarray(v).tolist() for k, v in stats._asdict().items()}
    assert named == {
        "worker": [0, 1],
        "local_steps": [8, 4],
        "batch_size": [3, 3],
        "examples": [24, 12],
        "learning_rate": [1, 1],
        "staleness": [0, 0],
        "leaves": [1, 1],
        "share": [1, 1],
        "accuracy": [0, 0],
        "weight": [1, 1],
        "server_steps": 0,
        "num_workers": 2,
    }
    assert stats.worker.dtype == jnp.int32
    assert merge.stats([0, 2]).present.tolist() == [False, True]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"local_steps": 3}, "local_steps has shape"),
        ({"local_steps": [1, 2], "batch_size": [1, 2, 3]}, "batch_size.*2 members"),
    ],
)
def test_statistics_that_do_not_fit(given, words):
    with pytest.raises(ValueError, match=words):
        merge.stats(**given)


def test_a_merge_by_itself():
    """A merge on a user's own pytrees, with all defaults."""
    merging = merge.sma()
    state = merging.init({"w": jnp.zeros(2)})
    replicas = tuple(
        cases.Replica(
            {"w": jnp.full(2, x)}, carry={"prev_params": {"w": jnp.full(2, x)}}
        )
        for x in (1.0, 3.0)
    )
    state, replicas = merging.apply(state, replicas, merge.stats(local_steps=[8, 4]))
    np.testing.assert_allclose(state.center["w"], 2.0)
    np.testing.assert_allclose([r.params["w"][0] for r in replicas], (0.5, 1.5))


@pytest.mark.parametrize(
    "use",
    [
        lambda z: merge.average().init(z),
        lambda z: formulas.weighted_mean([z, z], [1, 1]),
        lambda z: local.new_replica(local.sgd(), z),
        all_finite,
        num_bytes,
    ],
)
def test_complex_numbers_are_refused(use):
    """They would otherwise be left as they are, as counters and keys are."""
    with pytest.raises(TypeError, match="complex64, but complex numbers are not"):
        use({"w": jnp.ones(3, jnp.complex64)})


RULES = {
    "average": lambda: merge.average(),
    "with momentum": lambda: merge.average(momentum=0.5),
    "normalized": lambda: merge.normalized(),
    "sma": lambda: merge.sma(),
    "fed_nova": lambda: merge.fed_nova(),
    "replica_mean": lambda: merge.replica_mean(),
}


@pytest.mark.parametrize("name", RULES)
def test_float64_stays_float64(name):
    """Least squares by two workers ends at the solution, to the last digits."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        a = rng.normal(size=(2, 6, 3))
        solution = np.array([0.1, 1 / 3, -2.0])
        b = a @ solution
        rule = RULES[name]()

        @jax.jit
        def round_of(state, models):
            stepped = tuple(
                Replica(
                    w - 0.1 * a[i].T @ (a[i] @ w - b[i]),
                    carry=local.empty_buffers(w, rule.requires),
                )
                for i, w in enumerate(models)
            )
            state, after = rule.apply(state, stepped, merge.stats([1, 1]))
            return state, tuple(r.params for r in after)

        state, models = rule.init(jnp.zeros(3)), (jnp.zeros(3),) * 2
        for _ in range(600):
            state, models = round_of(state, models)
        center = rule.model(state)[0]
        assert center.dtype == jnp.float64
        np.testing.assert_allclose(center, solution, atol=1e-13)
