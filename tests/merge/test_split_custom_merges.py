"""Custom merges are split without a change of what they compute."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

from hetjax.merge.merge_exchange import changed_leaves
from hetjax.merge.merge_traffic import exchange_of
from hetjax.replica import Replica

STATS = np.arange(2, dtype=np.float32)


def replicas(dtype=jnp.float32, size=32):
    """Two members; a worker may compute leaves of this size from its own."""
    return tuple(
        Replica(jnp.linspace(-1, k, size, dtype=dtype), jnp.full(size, k, dtype))
        for k in (1, 2)
    )


def split(apply, state, members, times=1):
    """(state, members) after the parts of a merge; how many leaves members compute."""
    exchange = exchange_of(apply, state, members, STATS, [False, False])
    changes = [c for parcel in exchange.parcels if parcel for c in parcel.changes]
    computed = [c for c in changes if c.computed is not None]
    for _ in range(times):
        leaves = [jax.tree.leaves(member) for member in members]
        given = zip(leaves, exchange.reads, strict=True)
        read = [[own[i] for i in numbers] for own, numbers in given]
        state, sent, _ = exchange.run(state, read, STATS)
        members = []
        for own, parcel in zip(leaves, exchange.parcels, strict=True):
            if parcel is None:
                members.append(Replica(*own))
                continue
            arrays = parcel.chosen(sent)
            after = changed_leaves(
                *(own, parcel.changes, parcel.program, arrays, jnp.copy),
                lambda program: program.jitted(),
            )
            members.append(Replica(*after))
    return (state, tuple(members)), len(computed)


def pulled(s, r):
    """Towards the center, as in SMA: the worker computes it."""
    return r._replace(params=r.params - 0.25 * (r.model_state - s))


def with_pull(change):
    """A merge that changes the state, and of which workers compute a part."""

    def apply(s, rs, stats):
        new = change(s, rs)
        total = s + sum(r.model_state for r in rs)
        return new + 0 * total, tuple(pulled(s, r) for r in rs)

    return apply


def zeros_of_two_signs(s, rs):
    ones = jnp.ones_like(s)
    return jnp.copysign(ones, 0.0) + 2 * jnp.copysign(ones, -0.0)


def not_numbers(s, rs):
    return jnp.where(jnp.isnan(s + jnp.nan), s, jnp.inf)


def one_function_twice(s, rs):
    plus = jax.jit(lambda x, y: x * 2 + y)
    return plus(s, 1.0) + plus(rs[0].model_state, s)


def looped(s, rs):
    return jax.lax.fori_loop(0, 3, lambda i, x: x * 0.5 + rs[1].model_state, s)


def long_sum(s, rs):
    for _ in range(1500):
        s = s + rs[0].model_state
    return s


def draws_by_another_rule(s, rs):
    with jax.threefry_partitionable(False):
        return s + jax.random.normal(jax.random.key(3), s.shape)


def by_shards(s, rs):
    mesh = jax.make_mesh((1,), ("d",), devices=jax.devices()[:1])
    double = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P(), out_specs=P())
    return double(s)


CONSTANT = jnp.arange(32.0)


@pytest.mark.parametrize(
    ("change", "computes"),
    [
        (lambda s, rs: s, True),
        (zeros_of_two_signs, True),
        (not_numbers, True),
        (one_function_twice, True),
        (looped, True),
        (lambda s, rs: CONSTANT, True),
        (long_sum, True),
        (draws_by_another_rule, False),
        (by_shards, False),
    ],
)
def test_state_and_members_are_those_of_the_merge(change, computes):
    apply = with_pull(change)
    state, members = jnp.linspace(-3.0, 3.0, 32), replicas()
    expected = jax.jit(apply)(state, members, STATS)
    found, computed = split(apply, jnp.copy(state), members)
    assert (computed > 0) == computes
    chex.assert_trees_all_equal(found, expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(np.signbit(one), np.signbit(other))


def test_zeros_of_two_signs_are_two_values():
    """In one leaf each: the worker fills it, or computes it."""

    def apply(s, rs, stats):
        (r, other) = rs
        mask = r.params > 0
        r = r._replace(
            params=jnp.where(mask, 0.0, r.params),
            model_state=jnp.where(mask, -0.0, r.params),
        )
        fills = jnp.full_like(s, 0.0), jnp.full_like(s, -0.0)
        return s, (r, Replica(*fills))

    members = replicas()
    expected = apply(jnp.zeros(32), members, STATS)
    found, _ = split(apply, jnp.zeros(32), members)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(np.signbit(one), np.signbit(other))


def test_effects_happen_as_often_as_in_the_merge():
    """Then workers compute nothing."""
    calls = []

    def count(x):
        calls.append(x)
        return np.float32(len(calls))

    def change(s, rs):
        like = jax.ShapeDtypeStruct((), jnp.float32)
        one, other = (io_callback(count, like, s[0]) for _ in range(2))
        return s + one + 10 * other

    found, computed = split(with_pull(change), jnp.zeros(32), replicas())
    assert computed == 0
    assert len(calls) == 2
    assert found[0][0] in (21.0, 12.0)  # which one is first is not defined


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_leaves_of_few_bits(dtype):
    apply = with_pull(lambda s, rs: s)
    state, members = jnp.zeros(64, dtype), replicas(dtype, 64)
    expected = jax.jit(apply)(state, members, STATS)
    found, computed = split(apply, jnp.copy(state), members)
    assert computed == 2
    chex.assert_trees_all_equal(found, expected)


def test_again_and_again_with_a_donated_state():
    """What is passed through, and constants, have buffers of their own."""

    def apply(s, rs, stats):
        pulls = tuple(pulled(s["z"], r) for r in rs)
        state = {"z": s["z"] + rs[0].model_state, "last": s["z"], "c": CONSTANT}
        return state, pulls

    def begin():
        return {name: jnp.ones(32) for name in ("z", "last", "c")}

    members, expected = replicas(), (begin(), replicas())
    for _ in range(3):
        expected = jax.jit(apply)(*expected, STATS)
    found, computed = split(apply, begin(), members, times=3)
    assert computed == 2
    chex.assert_trees_all_equal(found, expected)
    np.testing.assert_array_equal(CONSTANT, np.arange(32))
