"""Laws over a table of all merges; a new merge is a new row, with its promises."""

from inspect import isfunction
from typing import NamedTuple

import chex
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import optax
from absl.testing import parameterized

from hetjax import merge, tree
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge import outer_optimizers

NEVER, ALWAYS = 0.0, 1e9  # perturbation thresholds that no model / every model is below


AT_ONCE = MergeOp.ACCUMULATE | MergeOp.APPLY | MergeOp.FETCH


class Row(NamedTuple):
    """A merge and the laws that it promises besides those of all merges."""

    merge: merge.Merge
    op: MergeOp = PUSH_FETCH
    order: bool = True  # the members' order is irrelevant
    consensus: bool = True  # replicas that equal the center leave it, exactly
    mean: bool = True  # identical members give their own model, exactly
    conserved: bool = False  # centre + sum of replicas (and what is pending) stays
    # a member without updates is ignored and continues from the center ("broadcasts"),
    # stays as it was ("stays"), or may do either ("either"); "counts": members without
    # updates take part
    inactive: str = "broadcasts"
    empty: bool = True  # a merge without active members changes no model
    statistics: bool = True  # a reset copies the center's model state, too


def perturbed(**settings):
    """Normalized merging whose weights do not sum to one."""
    return Row(
        merge.normalized(perturbation_threshold=ALWAYS, **settings), consensus=False
    )


def pulled(*, mean=True, conserved=False, **settings):
    return Row(merge.sma(**settings), mean=mean, conserved=conserved, inactive="stays")


def looking_ahead():
    """Members are given another model than the center."""

    def give(center, state):
        return tree.map_floats(lambda c, m: c - 0.6 * m, center, state.m)

    return merge.outer(outer_optimizers.look_ahead(), since="given", give=give)


def alone(merging, op=PUSH_FETCH, **laws):
    """A merge made for one member at a time; these laws hold for several as well."""
    return Row(merging, op, **{"mean": False, "inactive": "either", **laws})


TABLE = {
    "average": Row(merge.average()),
    "average updates": Row(merge.average(weights="local_steps")),
    "average examples": Row(merge.average(weights="examples")),
    "average batch_size": Row(merge.average(weights="batch_size")),
    "average function": Row(
        merge.average(weights=lambda f: f.local_steps * f.learning_rate)
    ),
    "average momentum": Row(merge.average(momentum=0.9)),
    "average reset": Row(merge.average(reset=True)),
    "normalized": Row(merge.normalized(perturbation_threshold=NEVER)),
    "normalized updates": Row(
        merge.normalized(weights="local_steps", perturbation_threshold=NEVER)
    ),
    "normalized no delta": Row(
        merge.normalized(delta=0.0, perturbation_threshold=ALWAYS)
    ),
    "perturbed": perturbed(),
    "perturbed updates_x_batch": perturbed(weights="local_steps_x_batch", momentum=0.0),
    "perturbed rms": perturbed(norm="rms"),
    "perturbed rms_per_leaf": perturbed(norm="rms_per_leaf"),
    "gradient": Row(merge.gradient_aggregation()),
    "gradient momentum": Row(merge.gradient_aggregation(optax.sgd(1.0, 0.9))),
    # its first step is the sign of the gradient: the mean is lost
    "gradient adam": Row(merge.gradient_aggregation(optax.adam(1.0)), mean=False),
    "gradient push": alone(
        merge.gradient_aggregation(), MergeOp.PUSH, inactive="stays"
    ),
    "sma": pulled(),
    "sma no momentum": pulled(momentum=0.0, conserved=True),
    "sma alpha": pulled(alpha=0.1, mean=False),
    "sma alpha no momentum": pulled(
        alpha=0.1, momentum=0.0, mean=False, conserved=True
    ),
    "sma of the mean": Row(merge.replica_mean(), mean=False, inactive="stays"),
    "sma first": pulled(statistics="first"),
    "sma beta after": pulled(
        beta=0.9, correction="after", momentum=0.0, mean=False, conserved=True
    ),
    "sma restart": Row(
        merge.sma(), op=PUSH_FETCH | MergeOp.RESET_TO_CENTER, statistics=False
    ),
    "hierarchical": Row(merge.hierarchical()),
    "hierarchical root": Row(merge.hierarchical(gamma=0.1, root=True), mean=False),
    "fed_nova": Row(merge.fed_nova()),
    "fed_nova momentum": Row(merge.fed_nova(momentum=0.9, server_momentum=0.9)),
    # (1 - (1 - mu)) / mu is 1 but for rounding
    "fed_nova proximal": Row(merge.fed_nova(proximal=0.1), mean=False),
    "fed_acc": Row(merge.fed_acc(power=2.0, weight_by_share=True)),
    "fed_adp": Row(merge.fed_adp(), mean=False),  # e^f / sum e^f rounds
    "elastic": alone(merge.easgd(), inactive="stays", conserved=True),
    "downpour": alone(merge.downpour(), MergeOp.PUSH),
    "downpour that waits": alone(merge.downpour()),
    "downpour adagrad": alone(
        merge.downpour(optax.adagrad(1.0)),
        MergeOp.DELIVER | MergeOp.PUSH | MergeOp.REQUEST,
        inactive="counts",
    ),
    "delay_compensated": Row(merge.delay_compensated()),
    "delay_compensated decay": Row(merge.delay_compensated(strength=2.0, decay=0.95)),
    "delay_compensated push": alone(
        merge.delay_compensated(decay=0.9, per_worker=False),
        MergeOp.PUSH,
        inactive="stays",
    ),
    "gradient_sums": Row(merge.gradient_sums(), AT_ONCE),
    "malenia": Row(merge.malenia(), AT_ONCE),
    "malenia report": alone(merge.malenia(), MergeOp.ACCUMULATE, inactive="stays"),
    "ringleader": Row(merge.ringleader(), AT_ONCE),
    "ringleader report": alone(
        merge.ringleader(), MergeOp.ACCUMULATE, inactive="stays"
    ),
    "scaffold": Row(merge.scaffold()),
    "compressed": Row(
        merge.compressed(merge.average(), top_k=3, chunk=4, bits=8), mean=False
    ),
    "compressed senders": Row(
        merge.compressed(
            merge.average(weights="local_steps"),
            top_k=3,
            chunk=6,
            error_feedback=None,
            average="senders",
        ),
        mean=False,
    ),
    "outer": Row(merge.outer(optax.sgd(1.0))),
    "outer nesterov": Row(merge.outer(weights="examples", scale=0.5), mean=False),
    "outer given": Row(merge.outer(optax.sgd(1.0), since="given")),
    "outer per rate": Row(
        merge.outer(optax.sgd(1.0, momentum=0.5), per_learning_rate=True)
    ),
    "outer look-ahead": Row(looking_ahead(), mean=False),
    "buffered": Row(merge.buffered(optax.sgd(1.0)), AT_ONCE),
    "buffered mean": Row(
        merge.buffered(optax.sgd(1.0), weights="local_steps", average="mean")
    ),
    "buffered rda": Row(
        merge.buffered(since="center", average="rda"), AT_ONCE, mean=False
    ),
    "buffered report": alone(
        merge.buffered(average="rda"), MergeOp.ACCUMULATE, inactive="stays"
    ),
    # one array cannot be divided
    "in_parts": Row(merge.in_parts(merge.outer(), merge.divided(2)), mean=False),
    "in_parts blend": Row(
        merge.in_parts(merge.outer(since="given"), merge.divided(2), blend=0.5),
        mean=False,
        inactive="either",
    ),
    # the master steps between two events, whichever members are active
    "magma_async": alone(
        merge.magma_async(), MergeOp.PUSH, inactive="counts", empty=False
    ),
    "gossip": alone(merge.gossip(), order=False, inactive="counts"),
}
UPDATES = (3, 5, 2, 4)  # distinct, so that no law depends on a tie
SOME = (3, 0, 5, 4)


def applied(row):
    apply, op = row.merge.apply, row.op
    return lambda state, replicas, stats: apply(state, replicas, stats, op)


# one function per row, whose compiled programs tests share
APPLY = {name: applied(row) for name, row in TABLE.items()}


def names(law=None):
    return tuple(k for k, row in TABLE.items() if law is None or getattr(row, law))


def test_every_merge_is_in_the_table():
    """Merges are identified by their factories."""
    made = {row.merge.apply.__qualname__.split(".")[0] for row in TABLE.values()}
    factories = {
        name
        for name in merge.__all__
        if isfunction(made_by := getattr(merge, name))
        and made_by.__annotations__.get("return") is merge.Merge
    }
    factories -= {"group_merge", "masked", "over_axis"}  # they wrap a merge
    assert made == factories


class Case:
    """A merge with random members and its `apply` function, for several laws."""

    def __init__(self, name, apply, variant):
        rng = np.random.default_rng(0)
        self.name, self.row, self.merge = name, TABLE[name], TABLE[name].merge
        self.apply, self.variant = apply, variant
        self.params = cases.random(rng, cases.SHAPES)
        self.model_state = cases.random(rng, cases.STATE)
        self.fresh = self.merge.init(self.params, self.model_state)
        broadcasts = merge.MergeProperty.BROADCASTS in self.merge.properties
        buffers = {"requires": self.merge.requires, "broadcasts": broadcasts}
        self.replicas = tuple(cases.random_replica(rng, **buffers) for _ in UPDATES)
        self.stats = cases.make_stats(UPDATES, server_steps=3)
        self.after = self.apply(self.fresh, self.replicas, self.stats)
        # in the middle of a run: its momentum, if any, is not zero
        self.warm = self.after[0]


def worker_order_is_irrelevant(case):
    order = (3, 0, 1, 2)  # a roll: a flip would commute with reversed indices
    state, replicas = case.after
    rolled = case.apply(case.fresh, *cases.pick(order, case.replicas, case.stats))
    cases.assert_close(rolled, (state, tuple(replicas[i] for i in order)))


def consensus_is_an_exact_fixed_point(case):
    replica = cases.agreeing_replica(case.params, case.model_state, case.merge.requires)
    if merge.MergeProperty.BROADCASTS in case.merge.properties:
        replica.carry["round_start"] = case.params
    replicas = (replica,) * len(UPDATES)
    state, after = case.apply(case.fresh, replicas, case.stats)
    if "angle" in case.merge.requires:  # as after a round
        assert all(r.carry.pop("angle").tolist() == [0, 1] for r in after)
        del replica.carry["angle"]
    for r in (*after, replica):
        r.carry.pop("table_row", None)  # it counts the gradients
    chex.assert_trees_all_equal(after, replicas)
    chex.assert_trees_all_equal(
        case.merge.model(state), tree.widened((case.params, case.model_state))
    )


def a_replica_without_updates_is_inactive(case):
    # if it counted, it would be the least busy and therefore perturbed
    nan = cases.broken(case.replicas[1])
    replicas = (case.replicas[0], nan, *case.replicas[2:])
    stats = cases.make_stats(
        SOME,
        batch_size=(8, 99, 10, 11),
        examples=(24, 99, 50, 44),
        learning_rate=(0.5, np.nan, 1.0, 1.25),
        server_steps=3,
    )
    expected = APPLY[case.name](case.fresh, *cases.pick((0, 2, 3), replicas, stats))
    state, after = case.apply(case.fresh, replicas, stats)
    cases.assert_close((state, (after[0], *after[2:])), expected)
    if case.row.inactive == "broadcasts":
        chex.assert_tree_all_finite(after[1].params)
        if case.row.statistics:
            chex.assert_tree_all_finite(after[1].model_state)
    if case.row.inactive != "stays":
        return
    chex.assert_trees_all_equal(after[1], nan)
    # not even its own buffers change its parameters
    buffers = case.replicas[1]._replace(carry=nan.carry)
    replicas = (replicas[0], buffers, *replicas[2:])
    _, after = case.apply(case.fresh, replicas, stats)
    chex.assert_trees_all_equal(after[1], buffers)


def a_merge_without_active_members_changes_no_model(case):
    empty = cases.make_stats((0,) * len(UPDATES))
    for state in (case.fresh, case.warm):
        after, replicas = case.apply(state, case.replicas, empty)
        chex.assert_trees_all_equal(after, state)
        chex.assert_tree_all_finite(replicas)


def structure_shape_and_dtype_survive(case):
    state, replicas = case.after
    same = chex.assert_trees_all_equal_shapes_and_dtypes
    same(state, case.fresh)
    same(replicas, case.replicas)
    # the model is float32 for any dtype of the replicas
    same(case.merge.model(state), tree.widened((case.params, case.model_state)))
    for before, after in zip(case.replicas, replicas, strict=True):
        assert after.model_state["count"] == before.model_state["count"]


def state_feeds_back(case):
    """With jit, no law traces the merge again: see `test_laws`."""
    state, replicas = case.fresh, case.replicas
    for k in range(3):
        updates = np.roll(UPDATES, k) - (0, 2, 0, 0)  # one inactive member
        stats = cases.make_stats(updates, server_steps=k)
        state, replicas = case.apply(state, replicas, stats)
    structure_shape_and_dtype_survive(case)


def the_sum_of_centre_and_replicas_is_conserved(case):
    def total(state, replicas):  # of a float32 leaf: bfloat16 would round
        models = [state.center, *(r.params for r in replicas)]
        models += [
            r.carry["delayed_update"] for r in replicas if "delayed_update" in r.carry
        ]
        return sum(np.asarray(m["layer"]["vector"]) for m in models)

    for updates in (UPDATES, SOME):
        stats = cases.make_stats(updates, server_steps=3)
        state, replicas = case.apply(case.fresh, case.replicas, stats)
        cases.assert_close(total(state, replicas), total(case.fresh, case.replicas))
        # but the center moved
        moved = state.center["layer"]["vector"] - case.fresh.center["layer"]["vector"]
        assert np.abs(moved).min() > 0.01


def a_node_is_its_model_to_the_node_above(case):
    state, merging = case.warm, case.merge
    member, adopt = case.variant(merging.as_member), case.variant(merging.from_parent)
    above = member(state)
    chex.assert_trees_all_equal((above.params, above.model_state), merging.model(state))
    # nothing changed above, so nothing changes here
    chex.assert_trees_all_equal(adopt(state, above), state)
    # the model from the node above becomes its model
    moved = tree.map_floats(lambda x: x + 1, above)
    adopted = adopt(state, moved)
    chex.assert_trees_all_equal(
        merging.model(adopted), (moved.params, moved.model_state)
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(adopted, state)


LAWS = {
    worker_order_is_irrelevant: lambda row: row.order,
    consensus_is_an_exact_fixed_point: lambda row: row.consensus,
    a_replica_without_updates_is_inactive: lambda row: row.inactive != "counts",
    a_merge_without_active_members_changes_no_model: lambda row: row.empty,
    structure_shape_and_dtype_survive: lambda row: True,
    state_feeds_back: lambda row: True,
    the_sum_of_centre_and_replicas_is_conserved: lambda row: row.conserved,
    a_node_is_its_model_to_the_node_above: lambda row: bool(row.merge.as_member),
}


class LawsTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.product(name=tuple(TABLE))
    def test_laws(self, name):
        """All laws that the row promises; with jit they share one trace."""
        chex.clear_trace_counter()
        jitted = "with_jit" in self.id().split("__")
        apply = chex.assert_max_traces(APPLY[name], n=1) if jitted else APPLY[name]
        case = Case(name, self.variant(apply), self.variant)
        for law, holds in LAWS.items():
            if holds(case.row):
                with self.subTest(law=law.__name__):
                    law(case)

    # without jit: a program of so many members takes a second to compile
    @chex.variants(without_jit=True)
    @parameterized.product(name=names("mean"))
    def test_identical_bfloat16_members_give_their_model_exactly(self, name):
        members = 16  # a power of two: weights and float32 sums are exact
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.normal(size=20), jnp.bfloat16)
        # the center starts at zero: a gradient -x at learning rate 1 leads to x, too
        carry = {"prev_params": x, "grad_sum": -x, "angle": jnp.zeros(2)}
        carry |= dict.fromkeys(("round_start", "shift"), jnp.zeros_like(x))
        carry |= cases.own_buffers(x, TABLE[name].merge.requires)
        replica = cases.Replica(x, x, (), carry)
        even = np.ones(members)
        stats = cases.make_stats(even, 8 * even, learning_rate=even, accuracy=even)
        fresh = TABLE[name].merge.init(jnp.zeros_like(x), jnp.zeros_like(x))
        state, _ = self.variant(APPLY[name])(fresh, (replica,) * members, stats)
        chex.assert_trees_all_equal(
            TABLE[name].merge.model(state), tree.widened((x, x))
        )
