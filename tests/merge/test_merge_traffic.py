"""Which leaves are sent for a merge, and that a merge needs no others."""

from functools import cached_property

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from real_runs import TASK
from zoo import make

import hetjax as hj
from hetjax.engine.programs.merge_functions import fetch_fn, merge_fn
from hetjax.engine.programs.task_programs import Programs
from hetjax.machine.types import PUSH_FETCH, MergeAction, MergeOp, WorkerInfo
from hetjax.merge.merge_exchange import changed_leaves, unpacked
from hetjax.merge.merge_traffic import exchange_of
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.real.dry_run import dry_run

INFOS = tuple(WorkerInfo(k, f"w{k}", "cpu", (), 1e-3, 1e-5, "", True) for k in range(3))
PROGRAMS = Programs(TASK)
# leaves that are sent in the usual merge: (read, changed)
PARAMS = {"params"}
SENT = {
    "elastic_sgd": (PARAMS, PARAMS),
    "sync_sgd": ({"grad_sum"}, PARAMS),
    "sma": ({"prev_params"}, PARAMS),
    "hier_sgd": ({"grad_sum"}, PARAMS | {"grad_sum"}),
    "fed_nova": (PARAMS, PARAMS | {"opt_state"}),
    "async_sgd": ({"grad_sum"}, PARAMS),
    "easgd": (PARAMS, {"delayed_update"}),
    "adaptive_sgd": (PARAMS, PARAMS),
}


def names_of(replica):
    """The part of a replica that each leaf belongs to."""
    paths = jax.tree_util.tree_leaves_with_path(replica)
    return [
        path[1].key if path[0].name == "carry" else path[0].name for path, _ in paths
    ]


def like(tree, seed):
    """A tree of random numbers, shaped like the given one."""
    rng = np.random.default_rng(seed)

    def one(leaf):
        value = rng.normal(size=leaf.shape)
        return jnp.asarray(np.abs(value) + 0.1, leaf.dtype)

    return jax.tree.map(one, tree)


class Case:
    """A kind of merge of a strategy, on random replicas."""

    def __init__(self, strategy, action):
        self.model = PROGRAMS.init(jax.random.key(1))
        topology = strategy.policy.topology(INFOS)
        merges = strategy.merges

        def merge_of(node):
            return merges[topology.merge_level(node, len(merges))]

        def state_of(merge, seed):
            state = jax.eval_shape(PROGRAMS.state(merge), *self.model)
            return like(state, seed)

        self.merge, self.op = merge_of(action.node), action.op
        self.members = (*action.members, *action.partners)
        self.local = [isinstance(m, str) for m in self.members]
        buffers = (*merges[0].requires, *strategy.local.requires)
        begin = PROGRAMS.replica(strategy.local, buffers)
        fresh = jax.eval_shape(begin, *self.model)
        self.replicas = [
            merge_of(m).as_member(state_of(merge_of(m), k))
            if isinstance(m, str)
            else like(fresh, 10 + k)
            for k, m in enumerate(self.members)
        ]
        self.state = state_of(self.merge, 99)
        table = hj.merge.stats(
            local_steps=[k + 1 for k in range(len(self.members))],
            batch_size=4,
            server_steps=1.0,
        )
        n = len(self.members)
        self.stats = np.stack(
            [np.broadcast_to(np.asarray(row, np.float32), n) for row in table]
        )

    def make_absent(self, member):
        """Let a member have done nothing since its last merge."""
        for name in ("local_steps", "examples"):
            self.stats[WorkerStats._fields.index(name), member] = 0

    def apply(self, state, replicas, stats):
        if self.op == MergeOp.FETCH:
            return state, fetch_fn(self.merge)(state, replicas)
        return merge_fn(self.merge)(state, replicas, stats, self.op)

    @cached_property
    def exchange(self):
        return exchange_of(
            self.apply, self.state, self.replicas, self.stats, self.local
        )


def cases_of(name):
    strategy = make(name, 4)
    found = dry_run(strategy, INFOS, (), num_examples=60, seconds=1.0)
    merges = [merge.action for merge in found.merges.values()]
    actions = [*merges, MergeAction((0,), op=MergeOp.FETCH)]
    return [Case(strategy, action) for action in actions]


def carried_out(case):
    """(state, replicas) after a merge, computed from the leaves that are sent."""
    exchange = case.exchange
    leaves = [jax.tree.leaves(replica) for replica in case.replicas]
    read = [
        [own[i] for i in numbers]
        for own, numbers in zip(leaves, exchange.reads, strict=True)
    ]
    # donated: the caller's state is used again
    state = jax.tree.map(jnp.copy, case.state)
    state, sent, local = exchange.run(state, read, case.stats)
    replicas = []
    for m, replica in enumerate(case.replicas):
        if case.local[m]:
            replicas.append(local.pop(0))
            continue
        after = list(leaves[m])
        parcel = exchange.parcels[m]
        if parcel is not None:
            assert unpacked(parcel.packed) == (parcel.changes, parcel.program)
            after = changed_leaves(
                leaves[m],
                parcel.changes,
                parcel.program,
                parcel.chosen(sent),
                jnp.copy,
                lambda program: program.jitted(),
            )
        replicas.append(jax.tree.unflatten(jax.tree.structure(replica), after))
    return state, tuple(replicas)


@pytest.mark.parametrize("name", hj.STRATEGIES)
def test_a_merge_needs_only_the_leaves_that_are_sent(name):
    """State and replicas are those of the merge itself, bit for bit."""
    for case in cases_of(name):
        expected = jax.jit(case.apply)(case.state, tuple(case.replicas), case.stats)
        found = carried_out(case)
        chex.assert_trees_all_equal(found, (expected[0], tuple(expected[1])))


@pytest.mark.parametrize("name", SENT)
def test_which_leaves_are_sent(name):
    case = cases_of(name)[0]
    assert case.op == PUSH_FETCH
    exchange, worker = case.exchange, case.local.index(False)
    names = names_of(case.replicas[worker])
    read = {names[i] for i in exchange.reads[worker]}
    changed = {names[c.leaf] for c in exchange.parcels[worker].changes}
    assert (read, changed) == SENT[name]


def test_a_common_model_is_sent_once():
    """All members of an average get the same arrays, and those of SMA the center."""
    leaves = len(jax.tree.leaves(PROGRAMS.init(jax.random.key(0))[0]))
    # of SMA besides, for each member, alpha and whether it is present
    for name, own in (("elastic_sgd", 0), ("sma", 2)):
        (case, _) = cases_of(name)
        sizes = {a: len(a) for p in case.exchange.parcels for a in p.arrays}
        rest = len(case.members) * [own] if own else []
        assert sorted(sizes.values()) == sorted([leaves, *rest])


def test_members_that_do_the_same_have_one_program():
    (case, _) = cases_of("sma")
    programs = [parcel.program[0] for parcel in case.exchange.parcels]
    assert len(programs) == 3
    assert len(set(programs)) == 1


def test_a_buffer_that_is_emptied_is_not_sent():
    case = cases_of("hier_sgd")[0]
    names = names_of(case.replicas[0])
    emptied = [
        c for c in case.exchange.parcels[0].changes if names[c.leaf] == "grad_sum"
    ]
    assert emptied
    assert all(c.fill == 0 and c.sent is None for c in emptied)


def test_a_model_in_the_mailbox_is_moved_by_its_worker():
    """Downpour's DELIVER alone: x <- mailbox; nothing is sent."""
    strategy = make("downpour", 4)
    case = Case(strategy, MergeAction((0,), op=MergeOp.DELIVER))
    exchange = case.exchange
    assert exchange.reads == ((),)
    names = names_of(case.replicas[0])
    assert {names[c.leaf] for c in exchange.parcels[0].changes} == PARAMS
    assert {names[c.copy_of] for c in exchange.parcels[0].changes} == {"mailbox"}


@pytest.mark.parametrize(
    ("expression", "change"),
    [
        (lambda r: r.params, None),
        (lambda r: r.params * 1.5 + 0.1, "computed"),
        (lambda r: jnp.where(r.opt_state > 0, r.params, -1), "computed"),
        (lambda r: jax.nn.relu(r.params), "computed"),
        (lambda r: jnp.sort(r.params), "sent"),
        (lambda r: jnp.zeros(3), "fill"),
        (lambda r: jnp.full(3, 2.5), "fill"),
        (lambda r: r.opt_state, "copy_of"),
        (lambda r: jnp.arange(3.0), "sent"),
        (jax.jit(lambda r: r.params + 1), "computed"),
    ],
)
def test_how_a_leaf_is_replaced(expression, change):
    """By a custom merge, with any JAX operations."""

    def apply(state, replicas, stats):
        (replica,) = replicas
        return state, (replica._replace(params=expression(replica)),)

    replica = Replica(jnp.array([1.0, 2.0, 3.0]), (), jnp.array([4.0, 5.0, 6.0]))
    exchange = exchange_of(apply, jnp.zeros(()), [replica], np.zeros(2), [False])
    (parcel,) = exchange.parcels
    changes = () if parcel is None else parcel.changes
    kinds = [
        k
        for c in changes
        for k in ("sent", "copy_of", "fill", "computed")
        if getattr(c, k) is not None
    ]
    assert kinds == ([] if change is None else [change])
    _, sent, _ = exchange.run(
        jnp.zeros(()), [[jax.tree.leaves(replica)[i] for i in exchange.reads[0]]], 0
    )
    if change == "sent":
        np.testing.assert_array_equal(sent[0], expression(replica))
    if change == "computed":
        program, numbers = parcel.program
        run = program.jitted()
        own = [jax.tree.leaves(replica)[i] for i in program.reads]
        (found,) = run(*own, *(sent[i] for i in numbers))
        np.testing.assert_array_equal(found, expression(replica))
    if change == "fill":
        assert changes[0].fill == float(expression(replica)[0])


WITHOUT_MAGMA = [name for name in hj.STRATEGIES if name != "magma_async_sgd"]


@pytest.mark.parametrize("name", WITHOUT_MAGMA)
def test_unreachable_members_do_not_count(name):
    """Without local steps they have no effect, whatever their leaves are."""
    for case in cases_of(name):
        if MergeOp.PUSH not in case.op or all(case.local):
            continue
        missing = case.local.index(False)
        case.make_absent(missing)
        states = []
        for value in (0.0, np.nan):
            gone = jax.tree.map(
                lambda x, v=value: (
                    jnp.full_like(x, v) if jnp.issubdtype(x.dtype, jnp.floating) else x
                ),
                case.replicas[missing],
            )
            replicas = list(case.replicas)
            replicas[missing] = gone
            state, _ = jax.jit(case.apply)(case.state, tuple(replicas), case.stats)
            states.append(state)
        chex.assert_trees_all_equal(*states)
        chex.assert_tree_all_finite(states[0])


def test_an_unreachable_slave_adds_nothing_to_magmas_sum():
    """It merges as a fresh replica: only the master's own steps happen."""
    pushes = [c for c in cases_of("magma_async_sgd") if MergeOp.PUSH in c.op]
    assert pushes
    for case in pushes:
        case.make_absent(0)
        model = case.merge.model(case.state)
        strategy = make("magma_async_sgd", 4)
        begin = PROGRAMS.replica(strategy.local, strategy.merges[0].requires)
        fresh = begin(*model)
        state, _ = jax.jit(case.apply)(case.state, (fresh,), case.stats)
        chex.assert_trees_all_equal(state.memory.g, case.state.memory.g)
        chex.assert_trees_all_close(state.model_state, case.state.model_state)
