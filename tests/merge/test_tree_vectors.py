"""Restarts, nested nodes, HierSGD: docs/algorithms C.2, C.4, D."""

import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import pytest

from hetjax import merge
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.members import CenterState, reset_to


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-7)


# C.2: the vector of C.1 (z = 2.09, z - z_prev = .59), then z replaces all models


@pytest.mark.parametrize("reset", [True, False])
def test_a_restart(reset):
    merging = merge.sma(momentum=0.9, alpha=0.5, reset_momentum=reset)
    state = CenterState(jnp.float32(1.5), (), jnp.float32(0.1))
    replicas = tuple(
        cases.Replica(
            jnp.float32(w),
            (),
            {"trace": jnp.float32(3)},
            {"prev_params": jnp.float32(b)},
        )
        for w, b in ((0.9, 1.0), (3.3, 3.0))
    )
    stats = cases.make_stats((1, 1))
    state, replicas = merging.apply(
        state, replicas, stats, PUSH_FETCH | MergeOp.RESET_TO_CENTER
    )
    close(state.center, 2.09)
    close([r.params for r in replicas], (2.09, 2.09))
    close(state.memory, 0.0 if reset else 0.59)
    close([r.opt_state["trace"] for r in replicas], [0.0 if reset else 3.0] * 2)


def test_a_replica_begins_its_round_at_the_model_it_continues_from():
    replica = cases.Replica(
        jnp.bfloat16(1.0), jnp.float32(1.0), "own", {"round_start": 0, "other": 5}
    )
    after = reset_to(replica, jnp.float32(2.0), jnp.float32(3.0))
    assert after.params.dtype == jnp.bfloat16
    assert (after.params, after.model_state, after.opt_state) == (2, 3, "own")
    assert after.carry == {"round_start": after.params, "other": 5}


# C.4 (a). Groups of two: r = (1, 3), z = 1.5, z_prev = 1.4, mu = .9; replicas before
# their step (1, 2) and (3, 5), all gradients .1 (times the learning rate);
# a_l = a_g = .5.


def test_two_level_averaging():
    """c = (0, .5) and (0, 1); r - z = -.5 and 1.5, of which half.

    w = (.9, 1.4) and (2.9, 3.9); r = 1 + .5 + .25 and 3 + 1 - .75;
    z = 1.5 + .5 (1) + .9 (.1).
    """
    group, root = merge.sma(momentum=0.0), merge.sma(momentum=0.9)
    two = cases.make_stats((1, 1))
    nodes, ends = [], []
    for r, before in ((1.0, (1.0, 2.0)), (3.0, (3.0, 5.0))):
        state = CenterState(jnp.float32(r), (), jnp.float32(7.0))
        replicas = tuple(
            cases.Replica(jnp.float32(b - 0.1), (), (), {"prev_params": jnp.float32(b)})
            for b in before
        )
        state, replicas = group.apply(state, replicas, two)
        nodes.append(state)
        ends += [r.params for r in replicas]
    state = CenterState(jnp.float32(1.5), (), jnp.float32(0.1))
    members = tuple(map(group.as_member, nodes))
    state, members = root.apply(state, members, two)
    nodes = [group.from_parent(n, m) for n, m in zip(nodes, members, strict=True)]
    close(ends, (0.9, 1.4, 2.9, 3.9))
    close([n.center for n in nodes], (1.75, 3.25))
    close(state.center, 1.5 + 0.5 + 0.09)


def test_a_node_s_momentum_is_of_its_own_moves():
    """w - w_p stays the same after the node above moved the node."""
    for merging in (merge.average(momentum=0.9), merge.normalized(momentum=0.9)):
        state = merging.init(jnp.float32(0.0), ())
        replicas = (cases.Replica(jnp.float32(2.0)),)
        one = cases.make_stats((1,))
        state, _ = merging.apply(state, replicas, one)  # w = 2, w_p = 0
        above = merging.as_member(state)._replace(params=jnp.float32(10.0))
        state = merging.from_parent(state, above)
        state, _ = merging.apply(state, (cases.Replica(jnp.float32(10.0)),), one)
        close(merging.model(state)[0], 10 + 0.9 * 2)


# D.1: gradients 1 and 2 at node a, 4 at node b; rate .1


def learner(gradient, x=1.0):
    return cases.Replica(jnp.float32(x), (), (), {"grad_sum": jnp.float32(gradient)})


@pytest.mark.parametrize(
    ("gammas", "nodes", "root"),
    [
        # 1 - .1 / 2 (3), 1 - .1 (4); 1 - .1 / 3 (7)
        ((None, None), (0.85, 0.6), 1 - 0.7 / 3),
        # 1 - .1 (.5) 3 and 4; 1 - .1 (2) 7
        ((0.5, 2.0), (0.85, 0.8), -0.4),
    ],
)
def test_two_levels_of_gradients(gammas, nodes, root):
    below = merge.hierarchical(gamma=gammas[0])
    top = merge.hierarchical(gamma=gammas[1], root=True)
    states = []
    for gradients in ((1, 2), (4,)):
        stats = cases.make_stats(
            (3,) * len(gradients), learning_rate=(0.1,) * len(gradients)
        )
        replicas = tuple(map(learner, gradients))
        state = below.init(jnp.float32(1.0), ())
        state, replicas = below.apply(state, replicas, stats)
        assert [float(r.carry["grad_sum"]) for r in replicas] == [0] * len(gradients)
        assert {float(r.params) for r in replicas} == {float(state.center)}
        states.append(state)
    close([s.center for s in states], nodes)
    close([s.memory for s in states], (3, 4))
    stats = cases.make_stats((6, 3), learning_rate=(0.1, 0.1), leaves=(2, 1))
    members = tuple(map(below.as_member, states))
    state, members = top.apply(top.init(jnp.float32(1.0), ()), members, stats)
    close(state.center, root)
    assert state.memory == ()
    states = [below.from_parent(s, m) for s, m in zip(states, members, strict=True)]
    close([s.center for s in states], (root, root))
    close([s.memory for s in states], (0, 0))  # cleared when passed up


def test_gradients_add_up_between_merges_above():
    below = merge.hierarchical(gamma=0.5)
    state = below.init(jnp.float32(1.0), ())
    for gradient in (2.0, -5.0):
        stats = cases.make_stats((1,), learning_rate=(0.1,))
        state, _ = below.apply(state, (learner(gradient),), stats)
    close((state.center, state.memory), (1 - 0.05 * -3, -3))


def test_a_root_merge_cannot_be_a_member():
    root = merge.hierarchical(root=True)
    assert (root.as_member, root.from_parent) == (None, None)
    assert merge.hierarchical().as_member is not None


@pytest.mark.parametrize(("statistics", "expected"), [("mean", 6.0), ("first", 4.0)])
def test_the_model_state_of_the_average(statistics, expected):
    """Three learners have batch statistics 9, 4 and 8; worker 0 did nothing."""
    merging = merge.sma(statistics=statistics)
    replicas = tuple(
        cases.Replica(jnp.zeros(1), jnp.float32(s), (), {"prev_params": jnp.zeros(1)})
        for s in (9.0, 4.0, 8.0)
    )
    state = merging.init(jnp.zeros(1), jnp.float32(1.0))
    stats = cases.make_stats((0, 3, 3))
    state, after = merging.apply(state, replicas, stats)
    close(merging.model(state)[1], expected)
    assert [float(r.model_state) for r in after] == [9, 4, 8]  # they keep their own


def swings(learners, groups, between, mu, merges=60):
    """The distances from z, after merges, of replicas without gradients from 0 to 1."""
    below = merge.sma(momentum=0.0)
    top = merge.sma(momentum=mu, beta=between)
    zero = jnp.zeros(())
    states = [below.init(zero, ()) for _ in range(groups)]
    root = top.init(zero, ())
    start = np.random.default_rng(0).uniform(0, 1, (groups, learners))
    replicas = [[cases.Replica(jnp.float32(w), (), (), {}) for w in g] for g in start]
    one, all_ = (cases.make_stats((1,) * n) for n in (learners, groups))
    leaf, above = (jax.jit(m.apply, static_argnums=3) for m in (below, top))
    for _ in range(merges):
        for g, state in enumerate(states):
            members = tuple(
                r._replace(carry={"prev_params": r.params}) for r in replicas[g]
            )
            states[g], replicas[g] = leaf(state, members, one)
        nodes = tuple(below.as_member(state) for state in states)
        root, nodes = above(root, nodes, all_)
        states = [below.from_parent(s, n) for s, n in zip(states, nodes, strict=True)]
    return max(abs(float(r.params - root.center)) for g in replicas for r in g)


@pytest.mark.parametrize("mu", [0.0, 0.9])
@pytest.mark.parametrize(("learners", "groups"), [(2, 2), (2, 3), (4, 2), (4, 8)])
def test_two_levels_converge_with_half_the_flat_algorithms_pull(learners, groups, mu):
    assert swings(learners, groups, 0.5, mu) < 0.5


def test_two_levels_diverge_with_the_full_pull():
    """By a factor of 1.207 per merge for two groups of two: 1.207^60 is 80,000."""
    assert swings(2, 2, 1.0, 0.0) > 1e3
