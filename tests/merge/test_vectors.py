"""Worked numbers of docs/algorithms, float64 oracles over many merges, identities."""

import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import optax
import pytest

from hetjax import merge
from hetjax.merge.averaging import NormalizedState
from hetjax.merge.members import CenterState

ALWAYS = 1e9  # a threshold that every model is below


def scalars(values, prev_params=None):
    """Replicas of one scalar parameter."""
    buffers = values if prev_params is None else prev_params
    return tuple(
        cases.Replica(jnp.float32(w), (), (), {"prev_params": jnp.float32(b)})
        for w, b in zip(values, buffers, strict=True)
    )


# --- A.3: normalized merging ------------------------------------------------------


def normalized_state(w, w_p):
    average = CenterState(jnp.float32(w), (), jnp.float32(w_p))
    return NormalizedState(average, jnp.int32(0), jnp.int32(0))


@pytest.mark.parametrize(
    ("settings", "expected", "met"),
    # .308 + .26 2 + .24 3 + .198 4 + .9 (2 - 1.5); the default forbids perturbing
    [({"perturbation_threshold": 10.0}, 2.79, True), ({}, 2.85, False)],
)
def test_the_vector_of_normalized_merging(settings, expected, met):
    merging = merge.normalized(**settings)
    stats = cases.make_stats((28, 26, 24, 22))
    state, replicas = merging.apply(
        normalized_state(2.0, 1.5),
        scalars((1, 2, 3, 4)),
        stats,
    )
    np.testing.assert_allclose(state.average.center, expected, rtol=1e-6)
    assert state.average.memory == 2.0
    assert merging.report(state) == {"condition_met": met, "weights_changed": met}
    assert all(r.params == state.average.center for r in replicas)


NORMALIZED = [
    # settings, updates, batch sizes, weights, number of changes
    pytest.param({}, (28, 26, 24, 22), None, (0.308, 0.26, 0.24, 0.198), 1, id="A.3"),
    pytest.param({"delta": 0.5}, (3, 1), None, (1.125, 0.125), 1, id="delta"),
    # equal updates: weights from batch sizes, and nothing is perturbed (r = s)
    pytest.param({}, (5, 5, 5), (1, 2, 5), (0.125, 0.25, 0.625), 0, id="equal"),
    pytest.param({}, (7,), (3,), (1.0,), 0, id="one worker"),
    pytest.param({}, (5, 0, 5), (1, 9, 3), (0.25, 0.0, 0.75), 0, id="equal active"),
    # only the first of several busiest, and of several least busy
    pytest.param({}, (3, 1, 3, 1), None, (0.4125, 0.1125, 0.375, 0.125), 1, id="ties"),
    pytest.param({}, (1, 3, 0, 4), None, (0.1125, 0.375, 0, 0.55), 1, id="inactive"),
    pytest.param(
        {"weights": "local_steps"}, (4, 4), (1, 3), (0.5, 0.5), 0, id="updates"
    ),
    pytest.param(
        {"weights": "local_steps_x_batch"},
        (4, 4),
        (1, 3),
        (0.25, 0.75),
        0,
        id="product",
    ),
    pytest.param(
        {"weights": "local_steps_x_batch"},
        (3, 1),
        (1, 5),
        (0.4125, 0.5625),
        1,
        id="both",
    ),
]


@pytest.mark.parametrize(("settings", "u", "b", "expected", "changed"), NORMALIZED)
def test_normalized_weights(settings, u, b, expected, changed):
    merging = merge.normalized(perturbation_threshold=ALWAYS, **settings)
    weights, state = cases.weights_of(merging, cases.make_stats(u, batch_size=b))
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    # the condition holds for all of these models, whether the weights change or not
    assert merging.report(state) == {"condition_met": 1, "weights_changed": changed}


def test_the_counters_count_merges():
    merging = merge.normalized(perturbation_threshold=ALWAYS)
    replicas = (cases.Replica(jnp.ones(2)),) * 2
    state = merging.init(jnp.ones(2), ())
    for updates in ((1, 1), (2, 1), (3, 3), (1, 4), (0, 0)):
        state, _ = merging.apply(state, replicas, cases.make_stats(updates))
    assert merging.report(state) == {"condition_met": 4, "weights_changed": 2}


@pytest.mark.parametrize(
    # 2-norm 5 over 8 numbers; leaves of root mean square sqrt(16 / 7) and 3
    ("measure", "value"),
    [("l2_over_dim", 5 / 8), ("rms", 5 / 8**0.5), ("rms_per_leaf", 3.0)],
)
@pytest.mark.parametrize("met", [False, True])
def test_regularisation_measures(measure, value, met):
    large = {"a": jnp.array([3.0]), "b": jnp.zeros(7).at[2].set(4.0)}
    small = jax.tree.map(jnp.zeros_like, large)
    threshold = value * (1.001 if met else 0.999)
    merging = merge.normalized(norm=measure, perturbation_threshold=threshold)
    replicas = (cases.Replica(small), cases.Replica(large))  # all must be below
    state = merging.init(small, ())
    state, _ = merging.apply(state, replicas, cases.make_stats((2, 1)))
    assert state.condition_met == met


# --- C.1: synchronous model averaging ---------------------------------------------


def test_the_vector_of_synchronous_model_averaging():
    w, g = np.array([1.0, 3.0]), np.array([0.1, -0.3])
    state = CenterState(jnp.float32(1.5), (), jnp.float32(1.5 - 1.4))
    replicas = scalars(w - g, prev_params=w)  # the local update has done its step
    merging = merge.sma(momentum=0.9, alpha=0.5)
    state, replicas = merging.apply(state, replicas, cases.make_stats((1, 1)))
    np.testing.assert_allclose(state.center, 2.09, rtol=1e-6)
    np.testing.assert_allclose([r.params for r in replicas], (1.15, 2.55), rtol=1e-6)
    # z - z_prev of the next merge
    np.testing.assert_allclose(state.memory, 2.09 - 1.5, rtol=1e-6)


def test_the_mean_of_the_replicas_as_their_centre():
    """As in KungFu: both replicas move a tenth of the way to 2, then do their step."""
    w, g = np.array([1.0, 3.0]), np.array([0.1, -0.3])
    state = CenterState(jnp.float32(7.0), ())
    merging = merge.replica_mean(alpha=0.1)
    replicas = scalars(w - g, prev_params=w)
    state, replicas = merging.apply(state, replicas, cases.make_stats((1, 1)))
    np.testing.assert_allclose([r.params for r in replicas], (1.0, 3.2), rtol=1e-6)
    np.testing.assert_allclose(state.center, 2.1, rtol=1e-6)


# --- float64 oracles --------------------------------------------------------------
#
# An oracle is (start, step): start(w) -> state, step(state, members) -> (state, w) in
# NumPy, where `members` are the active ones.


def mean_oracle(raw, gamma):
    def step(state, members):
        w, w_p = state
        alpha = np.array([raw(m) for m in members], np.float64)
        alpha /= alpha.sum()
        new = sum(a * m["params"] for a, m in zip(alpha, members, strict=True))
        new = new + gamma * (w - w_p)
        return (new, w), new

    return (lambda w: (w, w)), step


def normalized_oracle(rule, gamma, delta):
    def raw(members):
        u = np.array([m["local_steps"] for m in members])
        b = np.array([m["batch_size"] for m in members])
        if rule == "local_steps_x_batch":
            return u * b
        return b if rule == "paper" and (u == u[0]).all() else u

    def step(state, members):
        w, w_p = state
        alpha = raw(members) / raw(members).sum()
        u = [m["local_steps"] for m in members]
        r, s = int(np.argmax(u)), int(np.argmin(u))
        if r != s:
            alpha[r] *= 1 + delta
            alpha[s] *= 1 - delta
        new = sum(a * m["params"] for a, m in zip(alpha, members, strict=True))
        new = new + gamma * (w - w_p)
        return (new, w), new

    return (lambda w: (w, w)), step


def gradient_oracle(optimizer):
    """`optimizer` is a generator function: it is sent g and yields the update of w."""

    def start(w):
        updates = optimizer()
        next(updates)
        return w, updates

    def step(state, members):
        w, updates = state
        n = sum(m["examples"] for m in members)
        g = sum(m["examples"] * m["grad_sum"] for m in members) / n
        eta = sum(m["examples"] * m["learning_rate"] for m in members) / n
        w = w - eta * updates.send(g)
        next(updates)
        return (w, updates), w

    return start, step


def plain():
    while True:
        g = yield
        yield g


def heavy_ball(mu=0.9):
    v = 0.0
    while True:
        g = yield
        v = mu * v + g
        yield v


def adam(b1=0.9, b2=0.9, eps=1e-8):
    """With the usual b2 = .999 float32 loses four digits in 1 - b2^t."""
    m = v = t = 0.0
    while True:
        g = yield
        t += 1
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)


def sma_oracle(mu, alpha=None):
    def step(state, members):
        z, z_prev = state
        a = 1 / len(members) if alpha is None else alpha
        c = [a * (m["prev_params"] - z) for m in members]
        for m, c_j in zip(members, c, strict=True):
            m["expected"] = m["params"] - c_j
        new = z + sum(c) + mu * (z - z_prev)
        return (new, z), new

    return (lambda w: (w, w)), step


def weight(name):
    return lambda m: 1 if name == "equal" else m[name]


ORACLES = {
    **{
        f"average {name}": (merge.average(weights=name), mean_oracle(weight(name), 0.0))
        for name in ("equal", "local_steps", "examples", "batch_size")
    },
    "average momentum": (
        merge.average(weights="local_steps", momentum=0.9),
        mean_oracle(weight("local_steps"), 0.9),
    ),
    **{
        f"normalized {rule}": (
            merge.normalized(
                weights=rule, perturbation_threshold=ALWAYS, delta=0.2, momentum=0.7
            ),
            normalized_oracle(rule, 0.7, 0.2),
        )
        for rule in ("paper", "local_steps", "local_steps_x_batch")
    },
    "gradient": (merge.gradient_aggregation(), gradient_oracle(plain)),
    "gradient momentum": (
        merge.gradient_aggregation(optax.sgd(1.0, 0.9)),
        gradient_oracle(heavy_ball),
    ),
    "gradient adam": (
        merge.gradient_aggregation(optax.adam(1.0, b2=0.9)),
        gradient_oracle(adam),
    ),
    "sma": (merge.sma(), sma_oracle(0.9)),
    "sma alpha": (merge.sma(momentum=0.5, alpha=0.3), sma_oracle(0.5, 0.3)),
}
ROUNDS = (  # updates of each member: unequal, equal, one inactive, alone
    (28, 26, 24, 22),
    (7, 7, 7, 7),
    (3, 0, 9, 4),
    (0, 5, 5, 0),
    (1, 2, 2, 1),
    (0, 0, 6, 0),
)


def flat(tree):
    leaves = [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def as_members(replicas, stats):
    """The active members as the oracles see them, with their indices."""
    for i in np.flatnonzero(np.asarray(stats.local_steps)):
        buffers = {k: flat(v) for k, v in replicas[i].carry.items()}
        names = ("local_steps", "batch_size", "examples", "learning_rate")
        numbers = {k: float(getattr(stats, k)[i]) for k in names}
        yield i, {"params": flat(replicas[i].params)} | buffers | numbers


@pytest.mark.parametrize("name", ORACLES)
def test_several_merges_agree_with_float64(name):
    """To float32 rounding: terms of size 1 to 10, a few dozen roundings of 6e-8."""
    rng = np.random.default_rng(0)
    merging, (start, step) = ORACLES[name]
    shapes = {"a": jnp.zeros(()), "b": jnp.zeros((2, 3))}
    apply = jax.jit(lambda s, r, f: merging.apply(s, r, f))
    params = cases.random(rng, shapes)
    state, oracle = merging.init(params, ()), start(flat(params))
    for updates in ROUNDS:
        replicas = tuple(cases.random_replica(rng, shapes, ()) for _ in updates)
        stats = cases.make_stats(updates, batch_size=rng.uniform(1, 9, len(updates)))
        members = dict(as_members(replicas, stats))
        state, after = apply(state, replicas, stats)
        oracle, center = step(oracle, list(members.values()))
        model = flat(merging.model(state)[0])
        np.testing.assert_allclose(model, center, rtol=5e-6, atol=5e-6)
        for i, m in members.items():
            np.testing.assert_allclose(
                flat(after[i].params), m.get("expected", center), rtol=5e-6, atol=5e-6
            )


# --- identities (docs/algorithms K.5) ----------------------------------------------


def run(merging, rounds, rng):
    """The centres after several merges of random replicas that continue from them."""
    replicas = tuple(cases.random_replica(rng) for _ in rounds[0].local_steps)
    state, centers = merging.init(replicas[0].params, replicas[0].model_state), []
    for stats in rounds:
        state, replicas = merging.apply(state, replicas, stats)
        centers.append(merging.model(state))
        replicas = tuple(
            r._replace(params=cases.random(rng, cases.SHAPES)) for r in replicas
        )
    return centers


def test_normalized_with_equal_updates_is_elastic_averaging():
    even = cases.make_stats((4, 4, 4), batch_size=(8, 8, 8))
    adaptive = merge.normalized(momentum=0.9, perturbation_threshold=ALWAYS)
    easgd = merge.average(momentum=0.9)
    centers = [run(m, [even] * 3, np.random.default_rng(0)) for m in (adaptive, easgd)]
    cases.assert_close(*centers)


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_averaging_one_plain_step_is_aggregating_its_gradient(weights):
    rng = np.random.default_rng(0)
    shapes = {"w": jnp.zeros((2, 3))}
    params, eta = cases.random(rng, shapes), 0.3
    sizes = (4, 4, 4) if weights == "equal" else (2, 4, 9)
    stats = cases.make_stats((1, 1, 1), batch_size=sizes, learning_rate=(eta,) * 3)
    replicas = tuple(cases.random_replica(rng, shapes, ()) for _ in sizes)
    stepped = tuple(
        r._replace(
            params=jax.tree.map(lambda w, g: w - eta * g, params, r.carry["grad_sum"])
        )
        for r in replicas
    )
    results = []
    averaging, aggregating = (
        merge.average(weights=weights),
        merge.gradient_aggregation(),
    )
    for merging, members in ((averaging, stepped), (aggregating, replicas)):
        state, _ = merging.apply(merging.init(params, ()), members, stats)
        results.append(merging.model(state))
    cases.assert_close(*results)


def test_aggregation_equals_one_worker_with_all_the_examples():
    """With Adam, so that the mean gradient matters, not the mean step."""
    rng = np.random.default_rng(0)
    merging = merge.gradient_aggregation(optax.adam(1.0))
    shapes = {"w": jnp.zeros(4)}
    params = cases.random(rng, shapes)
    several = one = merging.init(params, ())
    for _ in range(3):
        gradients = rng.normal(size=(10, 4))  # of ten examples, three workers
        parts = np.split(gradients, (2, 7))
        sizes = [len(p) for p in parts]
        members = [
            cases.Replica(params, (), (), {"grad_sum": {"w": jnp.float32(p.mean(0))}})
            for p in (*parts, gradients)
        ]
        stats = cases.make_stats((1, 1, 1), batch_size=sizes, learning_rate=(0.1,) * 3)
        several, _ = merging.apply(several, tuple(members[:3]), stats)
        stats = cases.make_stats((1,), batch_size=(10,), learning_rate=(0.1,))
        one, _ = merging.apply(one, tuple(members[3:]), stats)
    cases.assert_close(several, one)


def test_sma_without_pull_leaves_replica_and_centre_alone():
    rng = np.random.default_rng(0)
    merging = merge.sma(alpha=0.0)
    replica = cases.random_replica(rng)
    params, model_state = cases.random(rng, cases.SHAPES), replica.model_state
    fresh = merging.init(params, model_state)
    state, (after,) = merging.apply(fresh, (replica,), cases.make_stats((1,)))
    jax.tree.map(np.testing.assert_array_equal, after, replica)
    jax.tree.map(np.testing.assert_array_equal, state, fresh)


# --- refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: merge.average(weights="size"), "size.*batch_size"),
        (lambda: merge.normalized(weights="equal"), "equal.*paper"),
        (lambda: merge.normalized(norm="l2"), "l2.*rms"),
    ],
)
def test_errors_for_unknown_names_list_the_known(make, words):
    with pytest.raises(ValueError, match=words):
        make()
