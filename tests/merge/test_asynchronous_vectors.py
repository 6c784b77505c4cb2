"""Elastic, Downpour, MagmaDNN and gossip merges, by hand: docs/algorithms F.3, G."""

import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import optax
import pytest

from hetjax import local, merge
from hetjax.machine.types import MergeOp
from hetjax.merge.members import CenterState
from hetjax.merge.parameter_server import MasterMemory

ETA = 0.1


def scalar(value, **buffers):
    """A replica of one parameter, without model state."""
    carry = {name: jnp.float32(v) for name, v in buffers.items()}
    return cases.Replica(jnp.float32(value), (), (), carry)


def one(learning_rate=ETA, workers=4, server_steps=0):
    """Worker statistics of a merge of the one worker that arrived."""
    return cases.make_stats(
        (1,),
        learning_rate=(learning_rate,),
        num_workers=workers,
        server_steps=server_steps,
    )


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-7)


# G.1 and G.2: alpha = .2, x~ = 1, x = (2, 4), gradients (1, -2), learning rate .1


def test_synchronous_elastic_averaging():
    """c = .2 (1, 3); x = (2 - .1 - .2, 4 + .2 - .6); x~ = 1 + .2 + .6."""
    merging = merge.sma(momentum=0.0, alpha=0.2)
    before = (2.0, 4.0)
    replicas = tuple(
        scalar(w - ETA * g, prev_params=w) for w, g in zip(before, (1, -2), strict=True)
    )
    state = merging.init(jnp.float32(1.0), ())
    state, replicas = merging.apply(state, replicas, cases.make_stats((1, 1)))
    close([r.params for r in replicas], (1.7, 3.6))
    close(state.center, 1.8)
    close(state.center, (1 - 2 * 0.2) * 1.0 + 2 * 0.2 * np.mean(before))  # G.1's form


@pytest.mark.parametrize(("settings", "pull"), [({}, 0.45), ({"beta": 0.6}, 0.3)])
@pytest.mark.parametrize("correction", ["before", "after"])
def test_the_pull_of_synchronous_elastic_averaging_is_beta_over_k(
    settings, pull, correction
):
    """Two of three members are active; with "after" the step counts as well."""
    beta = {"beta": 0.9, **settings}
    merging = merge.sma(momentum=0.0, correction=correction, **beta)
    assert merging.requires == (("prev_params",) if correction == "before" else ())
    replicas = tuple(scalar(w, prev_params=b) for w, b in ((1.5, 2), (9, 9), (4.5, 4)))
    state = merging.init(jnp.float32(1.0), ())
    stats = cases.make_stats((1, 0, 1))
    state, after = merging.apply(state, replicas, stats)
    included = (2.0, 4.0) if correction == "before" else (1.5, 4.5)
    moves = [pull * (x - 1) for x in included]
    close(state.center, 1 + sum(moves))
    close([r.params for r in after], (1.5 - moves[0], 9, 4.5 - moves[1]))


def test_asynchronous_elastic_averaging():
    """Worker 1: d = .2 (2 - 1), x~ = 1.2; then its step, and -d: 2 - .1 - .2 = 1.7.

    Worker 2: d = .2 (4 - 1.2) = .56, x~ = 1.76; then 4 + .2 - .56 = 3.64.
    """
    merging = merge.easgd(alpha=0.2)
    rule = local.with_buffers(local.sgd(), merging.requires)
    state = merging.init(jnp.float32(1.0), ())
    ends, centers = [], []
    for x, g in ((2.0, 1.0), (4.0, -2.0)):
        state, (replica,) = merging.apply(
            state,
            (scalar(x, delayed_update=0.0),),
            one(),
        )
        close(replica.params, x)  # unchanged so far: the gradient is at x

        def grad_fn(params, model_state, batch, x=x, g=g):
            close(params, x)
            return jnp.zeros(1), (), jnp.float32(g)

        replica, _ = rule.step(replica, None, ETA, grad_fn)
        assert replica.carry["delayed_update"] == 0
        ends.append(replica.params)
        centers.append(state.center)
    close(ends, (1.7, 3.64))
    close(centers, (1.2, 1.76))


def test_the_elastic_pull_is_beta_over_the_run_s_workers():
    merging = merge.easgd(beta=0.8)
    state = merging.init(jnp.float32(1.0), ())
    state, (replica,) = merging.apply(
        state,
        (scalar(3.0, delayed_update=0.5),),
        one(workers=4),
    )
    close(state.center, 1 + 0.8 / 4 * 2)
    close(replica.carry["delayed_update"], 0.5 - 0.4)  # the pending 0.5 is kept


# G.5: a server at 1, gamma = server_learning_rate * learning_rate


def test_downpour_with_adagrad():
    """gamma = .5 .1. Accrued 3: 1 - .05 3/3; then 4: .95 - .05 4/5, for 9 + 16 = 25."""
    adagrad = optax.adagrad(1.0, initial_accumulator_value=0.0)
    merging = merge.downpour(adagrad, server_learning_rate=0.5)
    state = merging.init(jnp.float32(1.0), ())
    for accrued, expected in ((3.0, 0.95), (4.0, 0.91)):
        replica = scalar(7.0, grad_sum=accrued, mailbox=0.0)
        state, (replica,) = merging.apply(state, (replica,), one(), MergeOp.PUSH)
        close(state.center, expected)
        assert (replica.params, replica.carry["grad_sum"]) == (7.0, 0.0)


@pytest.mark.parametrize(
    ("op", "server", "x", "accrued", "mailbox"),
    [
        # the plain server: 1 - .1 3; the old model in the mailbox is delivered
        (MergeOp.PUSH, 0.7, 5.0, 0.0, 2.0),
        (MergeOp.DELIVER, 1.0, 2.0, 3.0, 2.0),
        (MergeOp.REQUEST, 1.0, 5.0, 3.0, 1.0),
        (MergeOp.PUSH | MergeOp.REQUEST, 0.7, 5.0, 0.0, 0.7),
        (MergeOp.DELIVER | MergeOp.PUSH, 0.7, 2.0, 0.0, 2.0),
        (MergeOp.DELIVER | MergeOp.PUSH | MergeOp.REQUEST, 0.7, 2.0, 0.0, 0.7),
        (
            MergeOp.REQUEST | MergeOp.PUSH | MergeOp.DELIVER,
            0.7,
            2.0,
            0.0,
            0.7,
        ),  # always in this order
    ],
)
def test_the_operations_of_downpour(op, server, x, accrued, mailbox):
    merging = merge.downpour()
    state = merging.init(jnp.float32(1.0), ())
    replica = scalar(5.0, grad_sum=3.0, mailbox=2.0)
    state, (replica,) = merging.apply(state, (replica,), one(), op)
    carry = replica.carry
    close(state.center, server)
    close((replica.params, carry["grad_sum"], carry["mailbox"]), (x, accrued, mailbox))


# F.3


def master(w, z, g):
    memory = MasterMemory(jnp.float32(g), jnp.float32(z))
    return CenterState(jnp.float32(w), (), memory)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 300])
def test_n_server_steps_at_once_are_n_single_steps(beta, n):
    """z <- beta z + (1 - beta) g^; w <- w - alpha z, in float64, n times."""
    alpha, workers, w, z, g = 0.03, 4, 2.0, -0.7, 1.8
    merging = merge.magma_async(momentum=beta)
    replica = scalar(0.0, grad_sum=0.0, last_pushed_grad=0.0)
    state, _ = merging.apply(
        master(w, z, g),
        (replica,),
        one(alpha, workers, server_steps=n),
        MergeOp.FETCH | MergeOp.STEP,
    )
    for _ in range(n):
        z = beta * z + (1 - beta) * g / (workers - 1)
        w = w - alpha * z
    # q is a difference of numbers of size n, over 1 - beta
    np.testing.assert_allclose(state.center, w, rtol=2e-5)
    np.testing.assert_allclose(state.memory.z, z, rtol=2e-5)
    assert state.memory.g == np.float32(g)


def test_two_batches_of_server_steps_are_one():
    merging = merge.magma_async(momentum=0.9)
    replica = scalar(0.0, grad_sum=0.0, last_pushed_grad=0.0)
    ends = []
    for batches in ((3, 4), (7,)):
        state = master(1.0, 0.2, -3.0)
        for n in batches:
            state, _ = merging.apply(
                state, (replica,), one(server_steps=n), MergeOp.FETCH | MergeOp.STEP
            )
        ends.append((state.center, state.memory.z))
    close(ends[0], ends[1])


@pytest.mark.parametrize("literal", [True, False])
def test_the_operations_of_a_slave_on_the_shared_gradient(literal):
    """g = 5 includes the slave's own 2; it fetches, then pushes 3.

    Algorithm 3 subtracts at the fetch, "swap" at the push.
    """
    merging = merge.magma_async()
    replica = scalar(9.0, grad_sum=2.0, last_pushed_grad=2.0)
    op = MergeOp.FETCH | (MergeOp.SUBTRACT if literal else MergeOp.STEP)
    state, (replica,) = merging.apply(master(1.5, 0.0, 5.0), (replica,), one(), op)
    assert state.memory.g == (3.0 if literal else 5.0)
    assert replica.params == 1.5
    assert replica.carry["last_pushed_grad"] == (0.0 if literal else 2.0)
    replica = replica._replace(carry={**replica.carry, "grad_sum": jnp.float32(3.0)})
    state, (replica,) = merging.apply(state, (replica,), one(), MergeOp.PUSH)
    assert state.memory.g == 6.0
    assert replica.carry["last_pushed_grad"] == 3.0
    assert replica.params == 1.5  # a push does not fetch


# G.6


def test_the_vector_of_gossip():
    """x = 1 and 3, g_1 = .5, learning rate .1; 1 arrives, partner 2: 1.95 and 2."""
    merging = merge.gossip()
    state = merging.init(jnp.float32(2.0), ())  # the mean of both
    replicas = scalar(1.0, grad_sum=0.5), scalar(3.0, grad_sum=8.0)
    stats = cases.make_stats((1, 0), learning_rate=(0.1, 0.7))
    state, replicas = merging.apply(state, replicas, stats)
    close([r.params for r in replicas], (1.95, 2.0))
    close(state.center, (1.95 + 2.0) / 2)


def test_the_sum_of_all_models_moves_by_the_gradient_alone():
    """Several merges of pairs of five models; the node holds the mean of all five."""
    rng = np.random.default_rng(0)
    merging, n, learning_rate = merge.gossip(), 5, 0.3
    shapes = {"a": jnp.zeros(()), "b": jnp.zeros((2, 3))}
    start = cases.random(rng, shapes)
    models = [cases.Replica(start, (), (), {"grad_sum": shapes})] * n
    state = merging.init(start, ())

    def total():
        return jax.tree.map(lambda *x: sum(x), *(m.params for m in models))

    for i, j in ((0, 3), (4, 1), (3, 4), (2, 0), (3, 2)):
        g = cases.random(rng, shapes)
        models[i] = models[i]._replace(carry={"grad_sum": g})
        expected = jax.tree.map(lambda x, g: x - learning_rate * g, total(), g)
        stats = cases.make_stats(
            (1, 0), learning_rate=(learning_rate, 9.0), num_workers=n
        )
        state, pair = merging.apply(state, (models[i], models[j]), stats)
        models[i], models[j] = pair
        cases.assert_close(total(), expected)
        cases.assert_close(state.center, jax.tree.map(lambda x: x / n, total()))
    assert len({float(m.params["a"]) for m in models}) == n


def test_gossip_without_a_partner_is_a_step():
    merging = merge.gossip()
    state = merging.init(jnp.float32(1.0), ())
    stats = cases.make_stats((1,), learning_rate=(0.1,))
    state, (replica,) = merging.apply(state, (scalar(1.0, grad_sum=2.0),), stats)
    close((state.center, replica.params), (0.8, 0.8))
