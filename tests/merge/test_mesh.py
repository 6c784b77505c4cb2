"""One definition of a merge for a tuple of replicas, a mesh axis, and a gather."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec
from quick import quick, quick_if
from test_laws import APPLY, TABLE

from hetjax import formulas, merge
from hetjax.merge import MergeProperty
from hetjax.merge.group import unstacked

pytestmark = pytest.mark.usefixtures("cpu_alone")
N = 8
STEPS = (3, 5, 2, 4, 8, 1, 6, 7)  # distinct
SOME = (3, 0, 5, 4, 0, 1, 6, 7)
CHOSEN = ("average", "fed_nova", "sma")  # tested always on every layout
# layout: replicas per device, and whether the merge's rule is given a Group
LAYOUTS = {"8 x 1": (1, True), "4 x 2": (2, True), "gathered": (2, False)}
# MagmaDNN's server adds gradients one by one to its sum; a server's momentum and a
# compensated gradient are long chains of products and sums. XLA contracts other parts
# of these on a mesh
ROUNDED = (
    "fed_adp",
    "outer per rate",
    "magma_async",
    "fed_nova momentum",
    "delay_compensated decay",
)
FULL = {  # float32: bfloat16 would hide differences
    "scalar": jax.ShapeDtypeStruct((), jnp.float32),
    "matrices": [jax.ShapeDtypeStruct((5, 3), jnp.float32)],
}


def stack(trees):
    """Outside of compiled programs, which are smaller for it."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def on_host(arrays):
    return jax.tree.map(np.asarray, arrays)


def mesh_of(number):
    devices = np.array(jax.devices("cpu")[:number])
    return Mesh(devices, ("workers",), axis_types=(AxisType.Auto,))


def on_mesh(body, per_device):
    """body(whole, members) -> (whole, members), with N members along a mesh axis."""
    mesh = mesh_of(N // per_device)
    everywhere, split = PartitionSpec(), PartitionSpec("workers")

    def local(whole, stacked):
        whole, members = body(whole, unstacked(stacked, per_device))
        return whole, jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)

    mapped = jax.jit(
        jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(everywhere, split),
            out_specs=(everywhere, split),
            check_vma=False,
        )
    )

    def run(whole, members):
        whole, stacked = on_host(mapped(whole, stack(members)))
        return whole, unstacked(stacked, N)

    return run


def on_tuples(merging):
    """The merge as one that was not written for groups."""
    properties = merging.properties & ~MergeProperty.TAKES_GROUPS
    return merging._replace(properties=properties)


@cache
def applied(name, layout):
    """(state, replicas, stats) -> (state, replicas), along the axis."""
    per_device, grouped = LAYOUTS[layout]
    row = TABLE[name]
    merging = row.merge if grouped else on_tuples(row.merge)
    along = merge.over_axis(merging, "workers")

    def body(whole, replicas):
        state, stats = whole
        state, replicas = along.apply(state, replicas, stats, row.op)
        return (state, stats), replicas

    run = on_mesh(body, per_device)

    def apply(state, replicas, stats):
        (state, _), replicas = run((state, stats), replicas)
        return state, replicas

    return apply


@cache
def on_tuple(name):
    return jax.jit(APPLY[name])


class Case:
    def __init__(self, name, steps=STEPS, seed=0):
        rng = np.random.default_rng(seed)
        merging = TABLE[name].merge
        self.params, self.state = cases.random(rng, FULL), cases.random(rng, {})
        self.fresh = merging.init(self.params, self.state)
        self.replicas = tuple(
            cases.random_replica(
                rng,
                FULL,
                {},
                requires=merging.requires,
                broadcasts=MergeProperty.BROADCASTS in merging.properties,
            )
            for _ in steps
        )
        self.stats = cases.make_stats(steps, server_steps=3)


def same(name, layout, inputs):
    """Equal bit for bit with one replica per device: `psum` adds in the devices' order.

    XLA contracts some products and sums of a tuple's program into one rounding, so a
    number equals that of the tuple with jit or without jit; merges for which neither
    holds are listed in ROUNDED. With two replicas per device pairs are added first, and
    a gathered merge is fused differently: 2e-6 for terms of size one.
    """
    actual = applied(name, layout)(*inputs)
    expected = on_host(on_tuple(name)(*inputs))
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-6, atol=2e-6),
        actual,
        expected,
    )
    if layout != "8 x 1" or name in ROUNDED:
        return
    equal = jax.tree.map(np.equal, actual, expected)
    if not all(map(np.all, jax.tree.leaves(equal))):  # seldom
        plain = APPLY[name](*inputs)
        equal = jax.tree.map(lambda q, a, p: q | (a == p), equal, actual, plain)
    assert all(map(np.all, jax.tree.leaves(equal)))


@pytest.mark.parametrize(
    ("name", "layout"),
    quick_if(
        lambda row: row[1] == "8 x 1" or (row[1] == "4 x 2" and row[0] in CHOSEN),
        [(name, layout) for layout in LAYOUTS for name in TABLE],
    ),
    scope="class",  # all laws of a row in turn: they share its program
)
class TestLaws:
    def test_a_mesh_axis_equals_a_tuple(self, name, layout):
        for steps in (STEPS, SOME):
            case = Case(name, steps)
            same(name, layout, (case.fresh, case.replicas, case.stats))

    def test_the_order_of_the_devices_is_irrelevant(self, name, layout):
        if not TABLE[name].order:
            pytest.skip("addresses members by number")
        case, order = Case(name), np.roll(np.arange(N), 3)
        apply = applied(name, layout)
        state, replicas = apply(case.fresh, case.replicas, case.stats)
        rolled = apply(case.fresh, *cases.pick(order, case.replicas, case.stats))
        cases.assert_close(rolled, (state, tuple(replicas[i] for i in order)))

    def test_consensus_is_an_exact_fixed_point(self, name, layout):
        if not TABLE[name].consensus:
            pytest.skip("weights that do not sum to one")
        case = Case(name)
        merging = TABLE[name].merge
        replica = cases.agreeing_replica(case.params, case.state, merging.requires)
        if MergeProperty.BROADCASTS in merging.properties:
            replica.carry["round_start"] = case.params
        state, after = applied(name, layout)(case.fresh, (replica,) * N, case.stats)
        for r in (*after, replica):
            r.carry.pop("angle", None)
            r.carry.pop("table_row", None)
        chex.assert_trees_all_equal(after, (replica,) * N)
        chex.assert_trees_all_equal(merging.model(state)[0], case.params)

    def test_a_nan_of_an_inactive_member_does_not_count(self, name, layout):
        if TABLE[name].inactive == "counts":
            pytest.skip("members without steps take part")
        case = Case(name, SOME)
        nan = cases.broken(case.replicas[1])
        replicas = (case.replicas[0], nan, *case.replicas[2:])
        apply = applied(name, layout)
        state, after = apply(case.fresh, replicas, case.stats)
        expected, clean = apply(case.fresh, case.replicas, case.stats)
        chex.assert_trees_all_equal(state, expected)
        chex.assert_trees_all_equal((after[0], *after[2:]), (clean[0], *clean[2:]))

    def test_a_merge_without_active_members_changes_no_model(self, name, layout):
        if not TABLE[name].empty:
            pytest.skip("a server that steps by itself")
        case = Case(name, (0,) * N)
        state, _ = applied(name, layout)(case.fresh, case.replicas, case.stats)
        chex.assert_trees_all_equal(state, case.fresh)


PARTS = ((0, 1, 2), (3, 4, 5, 6, 7))  # unequal
HOLDS = (0, 0, 0, 1, 1, 1, 1, 2)  # three members; copies lie side by side


@cache
def by_device(name, holds):
    """(states, replicas, statistics) [N, ...] of each device -> the same, merged."""
    row = TABLE[name]
    parts = None if holds else PARTS
    along = merge.over_axis(
        row.merge, "workers", axis_groups=parts, replicated_over=holds
    )

    def local(*stacked):
        state, replica, stats = jax.tree.map(lambda x: x[0], stacked)
        state, (replica,) = along.apply(state, (replica,), stats, row.op)
        return jax.tree.map(lambda x: x[None], (state, replica))

    split = PartitionSpec("workers")
    mapped = jax.shard_map(
        local, mesh=mesh_of(N), in_specs=split, out_specs=split, check_vma=False
    )
    return jax.jit(mapped)


def each_device(name, holds, states, replicas, stats):
    """The merge, device by device: [(state, replica)]."""
    stacked = by_device(name, holds)(*map(stack, (states, replicas, stats)))
    return unstacked(on_host(stacked), N)


@pytest.mark.parametrize(
    "name",
    quick(
        [
            n
            for n, row in TABLE.items()
            if MergeProperty.TAKES_GROUPS in row.merge.properties
        ],
        *CHOSEN,
    ),
    scope="class",
)
class TestDividedAxis:
    def test_parts_merge_at_the_same_time_each_on_its_own(self, name):
        """As if the members of the other parts were absent."""
        if TABLE[name].inactive == "counts":
            pytest.skip("members without steps take part")
        case, other = Case(name, SOME), Case(name, SOME, seed=1)
        steps = [[s if d in part else 0 for d, s in enumerate(SOME)] for part in PARTS]
        stats = [cases.make_stats(s, server_steps=3) for s in steps]
        states = case.fresh, other.fresh  # of the two nodes
        part_of = [next(i for i, p in enumerate(PARTS) if d in p) for d in range(N)]
        found = each_device(
            name,
            None,
            [states[i] for i in part_of],
            case.replicas,
            [stats[i] for i in part_of],
        )
        for i, part in enumerate(PARTS):
            state, replicas = on_tuple(name)(states[i], case.replicas, stats[i])
            for d in part:
                cases.assert_close(found[d], (state, replicas[d]))

    def test_copies_of_a_member_count_once(self, name):
        case = Case(name, STEPS[:3])
        stats = [case.stats] * N
        copies = [case.replicas[m] for m in HOLDS]
        found = each_device(name, HOLDS, [case.fresh] * N, copies, stats)
        state, replicas = on_tuple(name)(case.fresh, case.replicas, case.stats)
        for d, m in enumerate(HOLDS):
            cases.assert_close(found[d], (state, replicas[m]))


@pytest.mark.parametrize("per_device", [1, 2])
def test_the_operations_of_a_group(per_device):
    """`each`, `total` and `values` along an axis equal those of a tuple."""
    rng = np.random.default_rng(1)
    trees = tuple(cases.random(rng, FULL) for _ in range(N))
    weights = jnp.asarray(rng.normal(size=N), jnp.float32).at[3].set(0.0)
    broken = (*trees[:3], jax.tree.map(lambda x: x * np.nan, trees[3]), *trees[4:])

    def asked(group):
        doubled = group.each(lambda x, w: jax.tree.map(lambda y: y * w, x), weights)
        again = doubled.each(lambda x, y: jax.tree.map(jnp.subtract, x, y), group)
        total = group.total(lambda x: x, weights)
        return (total, group.values(lambda x: x["scalar"])), again

    def body(whole, members):
        del whole
        group = merge.Group(members, "workers")
        assert (group.size, len(group.members)) == (N, per_device)
        whole, again = asked(group)
        return whole, again.members

    whole, again = on_mesh(body, per_device)((), broken)
    expected, members = asked(merge.Group(broken))
    chex.assert_trees_all_close(whole, expected, rtol=2e-6, atol=2e-6)
    chex.assert_trees_all_close(again, members.members, rtol=2e-6, atol=2e-6)
    chex.assert_tree_all_finite(whole[0])


def test_formulas_take_a_group():
    """In a user's own training loop inside shard_map, without a Merge."""
    rng = np.random.default_rng(2)
    trees = tuple(cases.random(rng, FULL) for _ in range(N))
    center = cases.random(rng, FULL)
    zero = jax.tree.map(jnp.zeros_like, center)
    weights = np.arange(N)

    def body(whole, members):
        group = merge.Group(members, "workers")
        moved = formulas.sma_correction(whole, zero, group, alpha=1 / N)
        mean = formulas.weighted_mean(group, weights)
        return (moved[:2], mean), moved[2].members

    (moved, mean), after = on_mesh(body, 2)(center, trees)
    expected = formulas.sma_correction(center, zero, trees, alpha=1 / N)
    cases.assert_close((*moved, after), expected)
    cases.assert_close(mean, formulas.weighted_mean(trees, weights))


def test_statistics_are_of_all_members():
    case = Case("average")
    run = merge.over_axis(merge.average(), "workers").apply

    def body(whole, members):
        return run(case.fresh, members, merge.stats([1.0]))

    with pytest.raises(ValueError, match="8 replicas along 'workers', statistics of 1"):
        on_mesh(body, 1)((), case.replicas)
