"""Outer merges by hand, with and without jit: docs/algorithms L.1, L.4, L.9, L.10."""

import re

import chex
import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from hetjax import merge
from hetjax.formulas import aligned
from hetjax.machine.types import MergeOp
from hetjax.merge import outer_optimizers
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica

START = jnp.array([1.0, -1.0])
# the replicas of workers 0 and 1 after the first two steps of each from START
FIRST = ((0.75, 0.25), (0.25, -1.0))
D = np.array([1.0, -1.0]) - np.mean(FIRST, 0)  # (0.5, -0.625)
ROUNDS = {
    "outer SGD": (merge.outer(optax.sgd(1.0)), START - D),
    "DiLoCo": (merge.outer(), START - 0.7 * 1.9 * D),
    "FedAvgM": (merge.outer(optax.sgd(1.0, momentum=0.9)), START - D),
    "SlowMo": (
        merge.outer(optax.sgd(1.0, momentum=0.7), per_learning_rate=True),
        START - D,
    ),
    "FedAdagrad": (
        merge.outer(outer_optimizers.fed_adagrad(0.3)),
        START - 0.3 * D / (np.sqrt(1e-6 + D**2) + 1e-3),
    ),
    "FedAdam": (
        merge.outer(outer_optimizers.fed_adam(0.1)),
        START - 0.1 * 0.1 * D / (np.sqrt(0.99e-6 + 0.01 * D**2) + 1e-3),
    ),
    "FedYogi": (
        merge.outer(outer_optimizers.fed_yogi(0.1)),
        START - 0.1 * 0.1 * D / (np.sqrt(1e-6 + 0.01 * D**2) + 1e-3),
    ),
}
ALIGNED = {  # of (3, 4), with these momenta
    (1.0, 1.0): (3.0, 4.0),
    (-2.0, 1.0): (2.969443, 4.015279),
    (-4.0, -1.0): (2.579454, 3.894863),
    (-4.0, 4.0): (2.016570, 4.575308),
}


def replica(params, start=START):
    return Replica(jnp.asarray(params, jnp.float32), (), (), {"round_start": start})


def near(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-6)


class VectorsTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.product(name=tuple(ROUNDS))
    def test_a_first_round(self, name):
        merging, expected = ROUNDS[name]
        stats = cases.make_stats((2, 2), learning_rate=(0.5, 0.5))
        state, members = self.variant(merging.apply)(
            merging.init(START, ()), tuple(map(replica, FIRST)), stats
        )
        near(state.center, expected)
        for member in members:
            near(member.params, expected)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.product(momentum=tuple(ALIGNED))
    def test_aligned(self, momentum):
        move = jnp.array([3.0, 4.0])
        near(self.variant(aligned)(move, jnp.array(momentum)), ALIGNED[momentum])

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_weakly_aligned_tensor_keeps_its_norm(self):
        found = self.variant(aligned)(jnp.array([3.0, 4.0]), jnp.array([-4.0, 4.0]))
        near(np.linalg.norm(found), 5.0)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(("rda", (0.428897, 2.716348)), ("mean", (0.75, 2.5)))
    def test_averages(self, average, expected):
        """D of (3, 4) and (0, 2) at weights 1 and 3."""
        merging = merge.buffered(optax.sgd(1.0), weights="weight", average=average)
        zero = jnp.zeros(2)
        members = tuple(replica(-jnp.array(d), zero) for d in ((3.0, 4.0), (0.0, 2.0)))
        stats = cases.make_stats((1, 1), weight=(1.0, 3.0))
        apply = self.variant(merging.apply)
        state, after = apply(merging.init(zero, ()), members, stats)
        near(-state.center, expected)
        chex.assert_trees_all_equal(after[0].params, state.center)

    @chex.variants(with_jit=True, without_jit=True)
    def test_reports_enter_one_by_one(self):
        """The second was given (2, 0), and is one update late: S = D_0 + D_1 / 2."""
        merging = merge.buffered(
            optax.sgd(0.5), scale=lambda stats: 1 / (1 + stats.staleness)
        )
        apply = self.variant(lambda *a: merging.apply(*a, MergeOp.ACCUMULATE))
        given = jnp.array([2.0, 0.0])
        state = merging.init(START, ())
        for late, member in enumerate((replica(FIRST[0]), replica((1.0, 1.0), given))):
            stats = cases.make_stats((1,), staleness=(late,))
            state, _ = apply(state, (member,), stats)
        chex.assert_trees_all_equal(state.center, START)  # it stays until then
        sums = np.array([0.25, -1.25]) + np.array([1.0, -1.0]) / 2
        state, _ = merging.apply(state, (), merge.stats([]), MergeOp.APPLY)
        near(state.center, START - 0.5 * sums / 2)

    @chex.variants(with_jit=True, without_jit=True)
    def test_one_part_of_a_model_is_merged_and_blended(self):
        """The other part stays everywhere."""
        merging = merge.in_parts(
            merge.outer(optax.sgd(1.0)), merge.divided(2), blend=0.25
        )
        params = {"a": jnp.ones(2), "b": jnp.ones(1)}
        members = tuple(
            Replica(jax.tree.map(lambda x, v=v: x * v, params)) for v in (2.0, 4.0)
        )
        apply = self.variant(merging.part("1").apply)
        stats = cases.make_stats((1, 1))
        state, after = apply(merging.init(params, ()), members, stats)
        model, _ = merging.model(state)
        near(model["a"], (1.0, 1.0))
        near(model["b"], (3.0,))
        for member, old in zip(after, (2.0, 4.0), strict=True):
            near(member.params["a"], (old, old))
            near(member.params["b"], (0.25 * old + 0.75 * 3.0,))

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_merge_without_members_knows_the_number_of_workers(self):
        """Delayed Nesterov divides by it; ACCUMULATE, then APPLY alone is PUSH."""
        merging = merge.buffered(outer_optimizers.delayed_nesterov(), since="center")
        members = (replica(FIRST[0]),)
        stats = cases.make_stats((1,), num_workers=2)
        empty = WorkerStats.unpacked(jnp.zeros((len(WorkerStats._fields), 0)))
        enter = self.variant(lambda *a: merging.apply(*a, MergeOp.ACCUMULATE))
        step = self.variant(lambda *a: merging.apply(*a, MergeOp.APPLY))
        state, _ = enter(merging.init(START, ()), members, stats)
        state, _ = step(state, (), empty)
        at_once, _ = merging.apply(
            merging.init(START, ()), members, stats, MergeOp.PUSH
        )
        near(state.center, at_once.center)
        near(state.center, START - 0.7 * np.array([0.25, -1.25]) / 2)

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_member_that_did_not_move_moves_nothing_in_low_precision(self):
        """It was given the center in its own dtype."""
        merging = merge.outer()
        center = jnp.array([1.001, -1.003])
        member = replica(center)
        member = member._replace(params=member.params.astype(jnp.bfloat16))
        state = merging.init(center, ())
        stats = cases.make_stats((1,), num_workers=1)
        for _ in range(3):
            state, (member,) = self.variant(merging.apply)(state, (member,), stats)
        np.testing.assert_array_equal(state.center, center)

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_part_that_is_taken_is_where_the_local_update_s_round_starts(self):
        """Also if the merge itself does not need "round_start", as with FedProx."""
        merging = merge.in_parts(merge.outer(), merge.divided(2), blend=0.5)
        params = {"a": jnp.ones(2), "b": jnp.ones(1)}
        before = jax.tree.map(jnp.zeros_like, params)
        member = Replica(
            jax.tree.map(lambda x: 3.0 * x, params), (), (), {"round_start": before}
        )
        fetch = self.variant(merging.part("1").fetch)
        found = fetch(merging.init(params, ()), member)
        near(found.params["b"], (2.0,))
        near(found.carry["round_start"]["b"], (1.0,))
        near(found.carry["round_start"]["a"], (0.0, 0.0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("7", "the part '7' of the model, which is divided into parts '0' to '1'"),
        ("x", "the part 'x' of the model, but in_parts has parts '0', '1', ..."),
        ("-1", "the part '-1' of the model, but in_parts has parts '0', '1', ..."),
    ],
)
def test_a_part_that_there_is_not(name, message):
    merging = merge.in_parts(merge.outer(), merge.divided(2))
    params = {"a": jnp.ones(2), "b": jnp.ones(1)}
    with pytest.raises(ValueError, match=re.escape(message)):
        merging.part(name).fetch(merging.init(params, ()), Replica(params))
    with pytest.raises(ValueError, match=re.escape(message)):
        merging.part(name).traffic(params, (), MergeOp.PUSH)
