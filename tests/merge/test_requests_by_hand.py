"""Errors and defaults for a user who calls merges and formulas in a loop of her own."""

import re
import textwrap

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hetjax as hj
from hetjax import formulas, merge

PARAMS = {"w": jnp.zeros(2), "b": jnp.zeros(())}
NAN = float("nan")
REQUIRING = {
    "sma": merge.sma,
    "replica_mean": merge.replica_mean,
    "easgd": merge.easgd,
    "downpour": merge.downpour,
    "magma_async": merge.magma_async,
    "gossip": merge.gossip,
    "gradient_aggregation": merge.gradient_aggregation,
    "hierarchical": merge.hierarchical,
    "fed_adp": merge.fed_adp,
}


def made(merging, n=2):
    return tuple(
        hj.local.new_replica(hj.local.sgd(), PARAMS, requires=merging.requires)
        for _ in range(n)
    )


# replicas


@pytest.mark.parametrize("name", REQUIRING)
def test_a_missing_buffer_is_named_with_its_remedy(name):
    merging = REQUIRING[name]()
    state, stats = merging.init(PARAMS), merge.stats(local_steps=[8, 4])
    words = f"{name}: replica 0 has no buffer {', '.join(merging.requires)}, .*"
    remedy = r"new_replica\(update, params, requires=merge.requires\)"
    bare = (hj.Replica(PARAMS), hj.Replica(PARAMS))
    with pytest.raises(ValueError, match=words + remedy):
        merging.apply(state, bare, stats)
    if merge.MergeProperty.TAKES_GROUPS in merging.properties:
        with pytest.raises(ValueError, match=words + remedy):
            merging.apply(state, merge.Group(bare), stats)
    merging.apply(state, made(merging), stats)  # the remedy works


def test_a_missing_buffer_of_one_replica_and_of_a_users_own():
    merging = merge.sma()
    replicas = (*made(merging), hj.Replica(PARAMS))
    with pytest.raises(ValueError, match="sma: replica 2 has no buffer prev_params"):
        merging.apply(merging.init(PARAMS), replicas, merge.stats([1, 2, 3]))
    counter = merge.Buffer("rounds", lambda params: jnp.zeros(()))
    own = merge.group_merge(
        lambda params: params, counted, lambda state: (state, ()), requires=(counter,)
    )
    with pytest.raises(ValueError, match="counted: replica 0 has no buffer rounds"):
        own.apply(PARAMS, (hj.Replica(PARAMS),), merge.stats([1]))


def counted(state, group, stats, op):
    del stats, op
    return state, group


@pytest.mark.parametrize(("replicas", "steps"), [(3, [8, 4]), (2, [8, 4, 2])])
def test_there_are_statistics_of_every_replica(replicas, steps):
    words = f"{replicas} replicas, statistics of {len(steps)}: pass one entry of each"
    for name, merging in {
        "average": merge.average(),
        "gossip": merge.gossip(),
        "masked": merge.masked(merge.average()),
    }.items():
        with pytest.raises(ValueError, match=f"{name}: {words}"):
            merging.apply(
                merging.init(PARAMS), made(merging, replicas), merge.stats(steps)
            )


@pytest.mark.parametrize("merging", [merge.average(), merge.gossip()])
def test_a_replica_is_no_bare_pytree(merging):
    bare = (PARAMS, PARAMS)
    with pytest.raises(ValueError, match=r"replica 0 is of type dict.*hj.Replica\(par"):
        merging.apply(merging.init(PARAMS), bare, merge.stats([8, 4]))


def test_checks_are_made_under_jit_too():
    merging = merge.sma()
    with pytest.raises(ValueError, match="sma: replica 0 has no buffer prev_params"):
        jax.jit(merging.apply)(
            merging.init(PARAMS), (hj.Replica(PARAMS),), merge.stats([1])
        )


def test_no_two_replicas_share_a_carry():
    first, second = hj.Replica(PARAMS), hj.Replica(PARAMS)
    first.carry["x"] = 1
    assert second.carry == hj.Replica(PARAMS).carry == {}
    given = {"x": 1}
    assert hj.Replica(PARAMS, carry=given).carry is given


def test_a_replica_is_a_named_tuple_and_a_pytree():
    replica = hj.Replica(PARAMS, carry={"x": jnp.ones(3)})
    assert replica._fields == ("params", "model_state", "opt_state", "carry")
    for same in (
        jax.tree.map(lambda x: x, replica),
        replica._replace(params=PARAMS),
        jax.jit(lambda r: r)(replica),
        hj.Replica(*replica),
    ):
        assert type(same) is hj.Replica
        assert jax.tree.structure(same) == jax.tree.structure(replica)
    axes = hj.Replica(0, None, None, None)  # a prefix
    assert axes.carry is None
    batched = replica._replace(params=jax.tree.map(lambda x: x[None], PARAMS))
    total = jax.vmap(lambda r: r.params["w"] + r.carry["x"].sum(), in_axes=(axes,))
    assert total(batched).shape == (1, 2)


def test_apply_has_its_own_documentation():
    for merging in (
        merge.average(),
        merge.gossip(),
        merge.over_axis(merge.sma(), "workers"),
        merge.masked(merge.average()),
    ):
        assert "hetjax.Replica" in merging.apply.__doc__
    help_of = merge.average().apply
    assert help_of.__code__.co_varnames[:4] == ("state", "replicas", "stats", "op")
    assert not hasattr(help_of, "__wrapped__")


def test_the_documented_merge_on_a_mesh(cpu_alone):
    block = merge.__doc__.split("all replicas:")[1]
    merging = merge.average()
    names = {"jax": jax, "hj": hj, "m": merging, "P": jax.sharding.PartitionSpec}
    exec(textwrap.dedent(block), names)
    replicas = tuple(hj.Replica({"w": jnp.full(2, float(k))}) for k in range(8))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *replicas)
    given = merging.init(CENTER), merge.stats(range(8))
    state, after = names["merged"](given[0], stacked, given[1])
    expected, (one, *_) = merging.apply(given[0], replicas, given[1])
    chex.assert_trees_all_close(state, expected, rtol=1e-6)
    for k in range(8):
        mine = jax.tree.map(lambda x, k=k: x[k], after)
        chex.assert_trees_all_close(mine, one, rtol=1e-6)


# formulas

TREES = [{"w": jnp.full(2, x)} for x in (1.0, 3.0, 8.0)]
CENTER = {"w": jnp.zeros(2)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: formulas.weighted_mean(TREES, [1, 1]), "weighted_mean: 3 trees.*2"),
        (lambda: formulas.weighted_mean([], []), "weighted_mean: there are no trees"),
        (lambda: formulas.weighted_move(CENTER, TREES, [1]), "weighted_move: 3 trees"),
        (lambda: formulas.weighted_move(CENTER, [], []), "weighted_move: there are no"),
        (lambda: formulas.moved(CENTER, TREES, [1, 2, 3, 4]), "3 trees, numbers.*4"),
        (
            lambda: formulas.sma_correction(CENTER, CENTER, TREES, alpha=[0.1, 0.2]),
            "sma_correction: 3 trees",
        ),
        (
            lambda: formulas.sma_correction(
                CENTER, CENTER, TREES, alpha=0.1, prev_trees=TREES[:2]
            ),
            "sma_correction: 3 trees, 2 prev_trees",
        ),
        (
            lambda: formulas.mean_correction(CENTER, TREES, prev_trees=TREES[:2]),
            "mean_correction: 3 trees, 2 prev_trees",
        ),
        (lambda: formulas.mean_correction(CENTER, []), "mean_correction: there are no"),
        (lambda: merge.Group(()).total(lambda x: x, jnp.ones(0)), "no trees"),
    ],
)
def test_as_many_numbers_as_trees(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"v": jnp.ones(2)}, r"the leaf \"\['w'\]\" only in tree 0"),
        ({"w": jnp.ones(2), "b": 1.0}, r"the leaf \"\['b'\]\" only in tree 2"),
        ({"w": jnp.ones(1)}, r"has shape \(2,\) in tree 0 and \(1,\) in tree 2"),
    ],
)
def test_trees_have_one_structure(odd, words):
    trees = [*TREES[:2], odd]
    for call in (
        lambda: formulas.weighted_mean(trees, [1, 1, 1]),
        lambda: merge.Group(tuple(trees)).total(lambda x: x, jnp.ones(3)),
    ):
        with pytest.raises(ValueError, match=words) as error:
            call()
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="only in the center"):
        formulas.weighted_move({"x": 1.0}, TREES, 0.1)


def test_python_scalars_are_pytrees():
    assert formulas.weighted_mean([1.0, 3.0], [1, 1]).item() == 2.0
    assert formulas.weighted_mean([{"a": 1.0}, {"a": 5.0}], [3, 1]) == {"a": 2.0}
    assert formulas.moved(1.0, [2.0, 4.0], 0.5).item() == 3.0
    assert formulas.weighted_move(1.0, [2.0, 4.0], [0.5, 0.25]).item() == 1.25
    center, velocity, after = formulas.sma_correction(
        0.0, 0.0, [1.0, 2.0], alpha=0.5, momentum=0.0
    )
    assert (center, velocity, after) == (1.5, 1.5, (0.5, 1.0))
    mean, after = formulas.mean_correction(0.0, [1.0, 3.0], alpha=0.5)
    assert (mean, after) == (2.0, (1.5, 2.5))
    assert formulas.model_norm([3.0, 4.0], "rms").item() == pytest.approx(12.5**0.5)


def test_one_weight_for_all_is_an_equal_weight():
    chex.assert_trees_all_equal(
        formulas.weighted_mean(TREES, 2), formulas.weighted_mean(TREES, [2, 2, 2])
    )


def test_integer_leaves_are_those_of_the_first_tree():
    trees = [{"x": jnp.ones(()), "count": jnp.int32(k)} for k in (7, 9)]
    assert formulas.weighted_mean(trees, [0, 1])["count"] == 7


# numbers


def test_a_rule_is_named_as_its_argument():
    with pytest.raises(ValueError, match="^rule='foo': choose one of"):
        formulas.normalized_weights([1], [1], norms=[0.0], rule="foo")
    with pytest.raises(ValueError, match="^weights='foo': choose one of"):
        merge.normalized(weights="foo")


@pytest.mark.parametrize("steps", [[-1, 2], [NAN, 2], jnp.array([1.0, -2.0])])
def test_local_steps_are_numbers_of_at_least_zero(steps):
    for name, call in {
        "stats": merge.stats,
        "bias_weights": formulas.bias_weights,
    }.items():
        with pytest.raises(ValueError, match=f"{name}: local_steps=.*at least 0"):
            call(steps)


def test_local_steps_of_the_absent_and_of_a_trace_are_not_checked():
    weights = formulas.bias_weights([NAN, 2, 6], np.array([False, True, True]))
    assert weights.tolist() == [0, 0.25, 0.75]
    assert jax.jit(formulas.bias_weights)([-1, 2]).tolist() == [-1, 2]
    steps = jax.jit(lambda x: merge.stats([x, 2]).local_steps)(-1.0)
    assert steps.tolist() == [-1, 2]


FRACTIONS = {"number": "from 0 to below 1", "wrong": (-0.1, 1.0, 5, NAN)}
SIZES = {"number": "of at least 0", "wrong": (-1, np.float32(-1), NAN)}


@pytest.mark.parametrize(
    ("make", "argument", "kind"),
    [
        (merge.average, "momentum", FRACTIONS),
        (merge.normalized, "momentum", FRACTIONS),
        (merge.normalized, "delta", SIZES),
        (merge.normalized, "perturbation_threshold", SIZES),
        (merge.sma, "momentum", FRACTIONS),
        (merge.sma, "alpha", SIZES),
        (merge.sma, "beta", SIZES),
        (merge.replica_mean, "alpha", SIZES),
        (merge.easgd, "alpha", SIZES),
        (merge.easgd, "beta", SIZES),
        (merge.downpour, "server_learning_rate", SIZES),
        (merge.magma_async, "momentum", FRACTIONS),
        (merge.hierarchical, "gamma", SIZES),
        (merge.fed_nova, "momentum", FRACTIONS),
        (merge.fed_nova, "server_momentum", FRACTIONS),
        (merge.fed_nova, "proximal", SIZES),
        (merge.fed_acc, "power", SIZES),
        (merge.fed_adp, "alpha", SIZES),
    ],
)
def test_a_setting_that_cannot_train_is_named(make, argument, kind):
    for wrong in kind["wrong"]:
        words = f"{argument}={wrong!r}: pass a number {kind['number']}"
        with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
            make(**{argument: wrong})
    make(**{argument: 0})
    checked = jax.vmap(lambda a: (make(**{argument: a}), a)[1])
    assert checked(jnp.array([-1.0, 0.5])).tolist() == [-1, 0.5]


def test_fed_acc_under_vmap_over_its_power():
    replicas = tuple(hj.Replica(jnp.float32(x)) for x in (1.0, 3.0))
    stats = merge.stats([1, 1], accuracy=[0.25, 0.75])

    def merged(power):
        merging = merge.fed_acc(power=power)
        return merging.apply(merging.init(jnp.zeros(())), replicas, stats)[0].center

    np.testing.assert_allclose(jax.vmap(merged)(jnp.array([0.0, 1.0])), [2.0, 2.5])


def test_a_server_s_momentum_may_be_traced():
    def built(decay):
        merge.gradient_aggregation(optax.trace(decay))
        return decay

    assert jax.vmap(built)(jnp.array([0.5])).tolist() == [0.5]
