"""Members that are stacked are merged as a tuple of them is."""

import chex
import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import pytest
from absl.testing import parameterized
from test_laws import TABLE

from hetjax import tree
from hetjax.engine.programs.merge_functions import applied
from hetjax.merge import MergeProperty
from hetjax.merge.counters import counters_of, counting, places_of
from hetjax.merge.group import Group, unstacked

GROUPED = tuple(
    name
    for name, row in TABLE.items()
    if MergeProperty.TAKES_GROUPS in row.merge.properties
)
UPDATES = (3, 5, 2, 4)
SOME = (3, 0, 5, 4)


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def on_stack(row):
    """The merge of a tuple, which is stacked and unstacked again."""

    def apply(state, stacked, stats):
        group = Group((stacked,), stacked=len(stats.local_steps))
        state, (after,) = row.merge.apply(state, group, stats, row.op)
        return state, after

    return apply


def on_tuple(row):
    return lambda state, replicas, stats: row.merge.apply(
        state, replicas, stats, row.op
    )


def members(merging, steps, model_state=cases.STATE, seed=0):
    rng = np.random.default_rng(seed)
    params, state = cases.random(rng, FULL), cases.random(rng, model_state)
    replicas = tuple(
        cases.random_replica(
            rng,
            FULL,
            model_state,
            requires=merging.requires,
            broadcasts=MergeProperty.BROADCASTS in merging.properties,
        )
        for _ in steps
    )
    stats = cases.make_stats(steps, server_steps=3)
    return merging.init(params, state), replicas, stats


FULL = {  # float32: bfloat16 would hide differences
    "scalar": jax.ShapeDtypeStruct((), jnp.float32),
    "layer": {"vector": jax.ShapeDtypeStruct((3,), jnp.float32)},
    "matrices": [jax.ShapeDtypeStruct((2, 3), jnp.float32)],
}


def assert_close(found, expected):
    chex.assert_trees_all_equal_shapes_and_dtypes(found, expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-6, atol=2e-6
        ),
        found,
        expected,
    )


class TestStacked(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(*GROUPED)
    def test_a_stack_equals_a_tuple(self, name):
        row = TABLE[name]
        stacked = self.variant(on_stack(row))
        for steps, model_state in ((UPDATES, cases.STATE), (SOME, {})):
            state, replicas, stats = members(row.merge, steps, model_state)
            if 0 in steps and row.inactive != "counts":
                broken = cases.broken(replicas[1])  # absent: its NaNs do not count
                replicas = (replicas[0], broken, *replicas[2:])
            expected = on_tuple(row)(state, replicas, stats)
            state, after = stacked(state, stack(replicas), stats)
            assert_close((state, unstacked(after, len(steps))), expected)


@pytest.mark.parametrize("name", ["average", "fed_nova", "sma", "magma_async"])
def test_many_members(name):
    row, number = TABLE[name], 64
    steps = [k % 5 for k in range(number)]  # some absent
    state, replicas, stats = members(row.merge, steps)
    expected = jax.jit(on_tuple(row))(state, replicas, stats)
    state, after = jax.jit(on_stack(row))(state, stack(replicas), stats)
    assert_close((state, unstacked(after, number)), expected)


@pytest.mark.parametrize("name", ["average", "sma"])
def test_counters_of_a_stack(name):
    row = TABLE[name]
    state, replicas, stats = members(row.merge, UPDATES)
    model_state = replicas[0].model_state
    assert len(counters_of(model_state)) == 1
    merging = counting(row.merge, places_of(model_state))
    state = merging.init(replicas[0].params, model_state)

    def run(group):
        return applied(merging, state, group, stats, row.op)

    new, after = run(replicas)
    stacked, (found,) = run(Group((stack(replicas),), stacked=len(UPDATES)))
    assert_close((stacked, unstacked(found, len(UPDATES))), (new, after))


def test_the_operations_of_a_stack():
    rng = np.random.default_rng(1)
    trees = [
        cases.random(rng, cases.SHAPES | {"n": cases.STATE["count"]}) for _ in "abcd"
    ]
    weights = jnp.asarray([0.5, 0.0, 2.0, -1.0])
    broken = [trees[0], cases.broken(trees[1]), *trees[2:]]

    def asked(group):
        scaled = group.each(lambda x, w: jax.tree.map(lambda y: y * w, x), weights)
        again = scaled.each(lambda x, y: tree.map_floats(jnp.subtract, x, y), group)
        total = group.total(lambda x: x, weights)
        assert group.size == 4
        return total, group.values(lambda x: x["layer"]["vector"]), again

    *whole, again = asked(Group((stack(broken),), stacked=4))
    *expected, others = asked(Group(tuple(broken)))
    assert_close(whole, expected)
    chex.assert_tree_all_finite(whole[0])
    assert_close(unstacked(again.members[0], 4), others.members)


def test_all_members_of_a_stack():
    """A rule may ask for them, and give them back."""
    rng = np.random.default_rng(2)
    trees = tuple(cases.random(rng, FULL) for _ in "abc")
    group = Group((stack(trees),), stacked=3)
    chex.assert_trees_all_equal(group.gathered(), trees)
    chex.assert_trees_all_equal(group.scattered(trees), group.members)
