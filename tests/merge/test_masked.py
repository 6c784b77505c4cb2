"""Users' own merges: hetjax handles inactive members, operations and buffers."""

import itertools

import chex
import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import pytest

from hetjax import local, merge
from hetjax.machine.types import MergeOp


def median():
    """A merge written on a tuple, as if all members were always active."""

    def apply(state, replicas, stats, op):
        middle = jax.tree.map(
            lambda *w: jnp.median(jnp.stack(w), axis=0), *[r.params for r in replicas]
        )
        return (middle, state[1]), tuple(r._replace(params=middle) for r in replicas)

    return merge.Merge(
        lambda *model: model,
        apply,
        model=lambda state: state,
        properties=merge.MergeProperty.BROADCASTS,
    )


PATTERNS = ((1, 1, 1, 1), (3, 0, 5, 4), (0, 0, 2, 1), (0, 7, 0, 0), (1, 0, 0, 1))
SHAPES = {"a": jax.ShapeDtypeStruct((2, 3), jnp.float32), "b": cases.SHAPES["scalar"]}


@pytest.mark.parametrize(
    ("variant", "seeds"), [(jax.jit, range(3)), (lambda f: f, range(1))]
)
def test_the_median_is_of_the_active_members_only(variant, seeds):
    masked = merge.masked(median())
    apply = variant(lambda s, r, f: masked.apply(s, r, f))
    for seed, steps in itertools.product(seeds, PATTERNS):
        rng = np.random.default_rng(seed)
        start = cases.random(rng, SHAPES)
        replicas = tuple(cases.random_replica(rng, SHAPES, (), ()) for _ in steps)
        pairs = list(zip(replicas, steps, strict=True))
        broken = tuple(r if s else cases.broken(r) for r, s in pairs)
        state, after = apply((start, ()), broken, merge.stats(steps))
        middle = jax.tree.map(
            lambda *w: np.median(np.stack([np.float32(x) for x in w]), axis=0),
            *[r.params for r, s in pairs if s],
        )
        expected = jax.tree.map(lambda m, x: m.astype(x.dtype), middle, start)
        chex.assert_trees_all_equal(state[0], expected)
        for r in after:  # inactive ones continue from it, too
            chex.assert_trees_all_equal(r.params, expected)


@pytest.mark.parametrize("variant", [jax.jit, lambda f: f])
def test_a_merge_without_active_members_changes_nothing(variant):
    rng = np.random.default_rng(0)
    replicas = tuple(cases.random_replica(rng, SHAPES, (), ()) for _ in range(3))
    before = (cases.random(rng, SHAPES), ())
    apply = variant(merge.masked(median()).apply)
    after = apply(before, replicas, merge.stats([0, 0, 0]))
    chex.assert_trees_all_equal(after, (before, replicas))


def test_order_is_kept_and_inactive_members_stay_as_they_are():
    def apply(state, replicas, stats, op):
        assert len(replicas) == len(stats.local_steps)
        ranks = (r._replace(params=r.params + 10 * i) for i, r in enumerate(replicas))
        return state + stats.local_steps.sum(), tuple(ranks)

    masked = merge.masked(merge.Merge(lambda *model: model, apply, lambda s: (s, ())))
    replicas = tuple(cases.Replica(jnp.float32(k)) for k in range(4))
    stats = merge.stats([2, 0, 3, 4])
    state, after = masked.apply(jnp.float32(0.0), replicas, stats)
    assert state == 9
    assert [float(r.params) for r in after] == [0, 1, 12, 23]


def test_masking_a_built_in_merge_does_not_change_it():
    rng = np.random.default_rng(0)
    replicas = tuple(cases.random_replica(rng, SHAPES, ()) for _ in range(4))
    stats, ours = merge.stats([3, 0, 5, 4]), merge.average(momentum=0.9)
    state = ours.init(cases.random(rng, SHAPES))
    expected = ours.apply(state, replicas, stats)
    cases.assert_close(merge.masked(ours).apply(state, replicas, stats), expected)


def test_too_many_members_are_refused():
    replicas = (cases.Replica(jnp.zeros(())),) * 33
    with pytest.raises(ValueError, match="33 members, but at most 32.*weights"):
        merge.masked(median()).apply((0.0, ()), replicas, merge.stats([1] * 33))


# operations


@pytest.mark.parametrize(
    ("merging", "op", "words"),
    [
        (merge.average(), MergeOp.RESET_TO_CENTER, "average.*RESET_TO_CENTER"),
        (merge.sma(), MergeOp.PUSH | MergeOp.REQUEST, "sma.*REQUEST.*FETCH"),
        (merge.easgd(), MergeOp.SUBTRACT, "easgd.*SUBTRACT"),
        (merge.gossip(), MergeOp.CLEAR, "gossip.*CLEAR"),
        (merge.masked(median()), MergeOp.STEP, "masked.*STEP"),
    ],
)
def test_an_unsupported_operation_is_refused(merging, op, words):
    state, replicas = merging.init(jnp.zeros(()), ()), (cases.Replica(jnp.zeros(())),)
    with pytest.raises(ValueError, match=words):
        merging.apply(state, replicas, merge.stats([1]), op)


# buffers


def rounds_of():
    """A merge that counts each member's rounds in its own buffer."""
    counter = merge.Buffer("rounds", init=lambda params: jnp.zeros(()))

    def apply(state, replicas, stats, op):
        counted = tuple(
            r._replace(carry={**r.carry, "rounds": r.carry["rounds"] + 1})
            for r in replicas
        )
        return state, counted

    return merge.Merge(
        lambda *model: model, apply, lambda state: state, requires=(counter,)
    )


def test_a_merge_s_own_buffer():
    merging, rule = rounds_of(), local.sgd()
    local.check_buffers(rule, merging.requires)
    assert local.step_buffers(rule, merging.requires) == ()
    assert local.merge_buffers((*merging.requires, "mailbox")) == ("rounds", "mailbox")
    replica = local.new_replica(rule, jnp.ones(3), requires=merging.requires)
    assert replica.carry == {"rounds": 0.0}
    state = merging.init(jnp.ones(3), ())
    for _ in range(3):
        state, (replica,) = merging.apply(state, (replica,), merge.stats([1]), None)
    assert replica.carry["rounds"] == 3


@pytest.mark.parametrize(
    ("requires", "words"),
    [
        (("rounds",), 'rounds.*declare.*Buffer."rounds"'),
        ((merge.Buffer("angle", jnp.zeros_like),), "'angle', which already exists"),
        ((merge.Buffer("x", jnp.zeros_like),) * 2, "'x', which already exists"),
    ],
)
def test_invalid_buffers(requires, words):
    with pytest.raises(ValueError, match=words):
        local.check_buffers(local.sgd(), requires)
