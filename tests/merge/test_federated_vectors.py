"""FedNova, FedAcc, FedAdp and the weights of local SGD: docs/algorithms E.1, I."""

import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import pytest

from hetjax import local, merge
from hetjax.formulas import nova_weights


def merged(merging, values, stats, state=None):
    """The model after a merge of these scalar models into 0 (or a state)."""
    replicas = tuple(cases.Replica(jnp.float32(x)) for x in values)
    state = merging.init(jnp.float32(0.0), ()) if state is None else state
    state, replicas = merging.apply(state, replicas, stats)
    assert {float(r.params) for r in replicas} == {float(state.center)}
    return state


def test_the_weights_of_local_sgd():
    """E.1: two slow workers of 4 steps, eight fast ones of 32."""
    tau = (4,) * 2 + (32,) * 8
    weights, _ = cases.weights_of(
        merge.average(weights="local_steps"), cases.make_stats(tau)
    )
    np.testing.assert_allclose(weights, [4 / 264] * 2 + [32 / 264] * 8, rtol=1e-6)
    np.testing.assert_allclose(weights[[0, 9]], (0.01515, 0.12121), atol=5e-6)


@pytest.mark.parametrize(
    ("merging", "expected"),
    [
        (merge.fed_nova(), -3.9375),  # 18 (-1/4 - 6/32) / 2
        (merge.average(), -3.5),
        (merge.average(weights="local_steps"), -5.4444),
    ],
    ids=["fed_nova", "balanced", "eq. 4"],
)
def test_the_vector_of_section_i(merging, expected):
    state = merged(merging, (-1, -6), cases.make_stats((4, 32)))
    np.testing.assert_allclose(state.center, expected, rtol=1e-5)


def test_fed_nova_takes_the_shares_of_active_members():
    """p = (.2, .6) / .8 for two of three members: tau_eff = .25 4 + .75 2 = 2.5."""
    stats = cases.make_stats((4, 9, 2), share=(0.2, 0.2, 0.6))
    stats = stats._replace(local_steps=stats.local_steps.at[1].set(0))
    weights, _ = cases.weights_of(merge.fed_nova(), stats)
    np.testing.assert_allclose(weights, (2.5 * 0.25 / 4, 0, 2.5 * 0.75 / 2), rtol=1e-6)


def norms(tau, rho=0.0, mu=0.0, eta=0.0):
    """||a_i||_1 step by step, as in the authors' code."""
    total = counter = 0.0
    for _ in range(tau):
        counter = rho * counter + 1
        total = (1 - eta * mu) * total + 1 if mu else total + counter
    return total


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"proximal": 0.7}, {"proximal": 1e-4}]
)
@pytest.mark.parametrize("eta", [0.1, 0.5])
def test_norms_are_the_sums_of_local_steps(settings, eta):
    """With a constant gradient g, tau steps lead to -eta ||a|| g; also the weights."""
    rule = local.sgd(momentum=settings.get("momentum", 0.0))
    if "proximal" in settings:
        rule = local.proximal(proximal=settings["proximal"])
    tau, g = (1, 3, 8), jnp.float32(2.0)
    moves = []
    for local_steps in tau:
        zero = jnp.float32(0.0)
        replica = cases.Replica(zero, (), rule.init(zero), {"round_start": zero})
        for _ in range(local_steps):
            replica, _ = rule.step(replica, None, eta, lambda *_: (jnp.zeros(1), (), g))
        moves.append(float(replica.params))
    rho, mu = settings.get("momentum", 0.0), settings.get("proximal", 0.0)
    a = [norms(local_steps, rho, mu, eta) for local_steps in tau]
    np.testing.assert_allclose(moves, [-eta * a_i * 2.0 for a_i in a], rtol=1e-5)
    # each member moves equally per step, and FedNova moves by tau_eff of these
    stats = cases.make_stats(tau, learning_rate=(eta,) * 3)
    state = merged(merge.fed_nova(**settings), moves, stats)
    effective = np.mean(tau if mu else a)
    np.testing.assert_allclose(state.center, -eta * effective * 2.0, rtol=1e-5)


def test_nova_weights_of_equal_steps_are_the_shares_exactly():
    p = jnp.array([0.2, 0.0, 0.5, 0.3])
    for momentum in (0.0, 0.9):
        weights = nova_weights((7, 0, 7, 7), p, momentum=momentum, present=p > 0)
        assert weights.tolist() == p.tolist()


def test_fed_nova_with_server_momentum():
    """eta = .5, gmf = .4. The moves are -2 (from 0), then 1 (from -2).

    buf = 2 / .5 = 4, x = -2; buf = .4 4 - 1 / .5 = -.4, x = -2 + .2.
    """
    merging = merge.fed_nova(server_momentum=0.4)
    stats = cases.make_stats((3, 3), learning_rate=(0.5, 0.5))
    state = merged(merging, (-1, -3), stats)
    np.testing.assert_allclose((state.center, state.memory), (-2, 4), rtol=1e-6)
    state = merged(merging, (0, -2), stats, state)
    np.testing.assert_allclose((state.center, state.memory), (-1.8, -0.4), rtol=1e-5)


def test_fed_nova_zeroes_its_members_momentum():
    merging = merge.fed_nova(momentum=0.9)
    replica = cases.Replica(jnp.ones(2), (), {"trace": jnp.ones(2)})
    state = merging.init(jnp.zeros(2), ())
    _, (after,) = merging.apply(state, (replica,), cases.make_stats((2,)))
    assert after.opt_state["trace"].tolist() == [0, 0]


def test_momentum_and_mu_exclude_each_other():
    with pytest.raises(ValueError, match="momentum or proximal"):
        merge.fed_nova(momentum=0.9, proximal=0.1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (0.2, 0.8, 0.0)),
        ({"power": 2.0}, (1 / 17, 16 / 17, 0.0)),
        ({"power": 0.0}, (0.5, 0.5, 0.0)),
        (
            {"weight_by_share": True},
            (0.6 / 1.0, 0.4 / 1.0, 0.0),
        ),  # .2 .6 and .8 .1, over .2
    ],
)
def test_fed_acc_weights(settings, expected):
    stats = cases.make_stats((3, 1, 1), accuracy=(0.2, 0.8, 0.9), share=(0.6, 0.1, 0.3))
    stats = stats._replace(local_steps=stats.local_steps.at[2].set(0))
    weights, _ = cases.weights_of(merge.fed_acc(**settings), stats)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_fed_acc_of_useless_models_is_their_mean():
    stats = cases.make_stats((1, 1), accuracy=(0.0, 0.0))
    weights, _ = cases.weights_of(merge.fed_acc(), stats)
    np.testing.assert_allclose(weights, (0.5, 0.5))
    assert merge.fed_acc().required_metrics == ("accuracy",)


# FedAdp


def at_angles(theta):
    """Two moves at these angles to their mean, which is on the first axis."""
    first, second = theta
    length = np.sin(first) / np.sin(second)  # so that the second coordinates cancel
    return (
        np.array([np.cos(first), np.sin(first)]),
        length * np.array([np.cos(second), -np.sin(second)]),
    )


def psi_of(merging, moves, stats, replicas=None, state=None):
    """The two weights, read off the merged model; then the new state and members."""
    start = np.zeros(2) if state is None else np.asarray(state.center)
    params = [jnp.float32(start + d) for d in moves]
    buffers = [jnp.zeros(2)] * 2 if replicas is None else [
        r.carry["angle"] for r in replicas
    ]  # fmt: skip
    members = tuple(
        cases.Replica(x, (), (), {"angle": angle})
        for x, angle in zip(params, buffers, strict=True)
    )
    state = merging.init(jnp.zeros(2), ()) if state is None else state
    state, members = merging.apply(state, members, stats)
    move = np.asarray(state.center) - start
    return np.linalg.solve(np.transpose(moves), move), state, members


def test_the_vector_of_fed_adp():
    """theta = (.5, 1.2), equal D, a = 5: f = (4.99997, 1.539) and psi from them."""
    stats = cases.make_stats((3, 5))
    psi, _, members = psi_of(merge.fed_adp(alpha=5.0), at_angles((0.5, 1.2)), stats)
    np.testing.assert_allclose(psi, (0.96956, 0.03044), atol=1e-5)
    angles = [r.carry["angle"].tolist() for r in members]
    np.testing.assert_allclose(angles, [(0.5, 1), (1.2, 1)], rtol=1e-5)


def test_fed_adp_takes_the_mean_of_a_member_s_angles():
    """(.5, 1.2), then (.9, .4): means (.7, .8); f by hand from them."""
    merging, stats = merge.fed_adp(alpha=5.0), cases.make_stats((3, 5))
    _, state, members = psi_of(merging, at_angles((0.5, 1.2)), stats)
    psi, _, members = psi_of(merging, at_angles((0.9, 0.4)), stats, members, state)
    smooth = np.array([0.7, 0.8])
    f = 5 * (1 - np.exp(-np.exp(-5 * (smooth - 1))))
    expected = np.exp(f) / np.exp(f).sum()
    np.testing.assert_allclose(psi, expected, atol=1e-5)
    rounds = [float(r.carry["angle"][1]) for r in members]
    assert rounds == [2, 2]


def test_fed_adp_counts_the_data():
    """Moves at equal angles to the mean, which leans towards the larger share's."""
    stats = cases.make_stats((1, 1), share=(0.75, 0.25))
    moves = np.array([1.0, 0.0]), np.array([0.0, 3.0])  # 3 (.25) = .75: 45 degrees
    psi, _, _ = psi_of(merge.fed_adp(), moves, stats)
    np.testing.assert_allclose(psi, (0.75, 0.25), atol=1e-5)
