"""Merges of one worker's gradient at a time: Rennala, Malenia, Ringleader, DC-ASGD."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import merge_cases as cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_cases import ETA, START, Workers, close

from hetjax import formulas, local, merge
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.replica import Replica

ENTER, APPLY = MergeOp.ACCUMULATE, MergeOp.APPLY
STEP = ENTER | APPLY | MergeOp.FETCH
KEPT = (0, 1, 0, 0, 1, 2)  # the workers of the reports at 2, 3, 4, 6, 6, 7 s


class Server:
    """A node to which workers report one at a time."""

    def __init__(self, merging, workers=3):
        self.merging, self.state = merging, merging.init(START)
        self.workers = Workers(local.gradient(), merging, workers)
        self.number = workers

    def reports(self, worker, op=PUSH_FETCH):
        self.workers.works(worker)
        stats = merge.stats(
            [1], learning_rate=ETA, num_workers=self.number, worker=[worker]
        )
        replicas = self.workers.replicas
        self.state, (replicas[worker],) = self.merging.apply(
            self.state, (replicas[worker],), stats, op
        )

    def fetches(self, worker):
        """As the loop does it."""
        replicas = self.workers.replicas
        replicas[worker] = merge.reset_to(
            replicas[worker], *self.merging.model(self.state)
        )

    def is_dropped(self, worker):
        self.workers.works(worker)
        self.fetches(worker)

    @property
    def center(self):
        return self.merging.model(self.state)[0]["x"]

    def given(self, worker):
        return self.workers.replicas[worker].params["x"]


# the vectors of docs/algorithms L.7 and L.8


def test_rennala_that_cancels():
    server = Server(merge.gradient_sums())
    for _ in range(3):
        server.reports(0, ENTER)
        server.reports(1, STEP)
        for cancelled in (0, 2):
            server.is_dropped(cancelled)
    close(server.center, (0.8125, -0.0625))


def test_rennala_that_ignores():
    server = Server(merge.gradient_sums())
    server.reports(0, ENTER)
    server.reports(1, STEP)
    server.is_dropped(0)
    server.reports(0, ENTER)
    server.reports(1, STEP)
    server.is_dropped(2)
    close(server.center, (1.125, -0.625))
    close(server.given(0), (0.75, -0.25))


@pytest.mark.parametrize("alone", [False, True], ids=["with its report", "alone"])
def test_malenia(alone):
    """APPLY alone has no members: it remembers the learning rate."""
    server = Server(merge.malenia())
    for worker in KEPT[:-1]:
        server.reports(worker, ENTER)
        close(server.center, START["x"])
    if alone:
        server.reports(2, ENTER)
        none = merge.stats([], num_workers=0)
        server.state, () = server.merging.apply(server.state, (), none, APPLY)
        server.fetches(2)
    else:
        server.reports(2, STEP)
    close(server.center, (0.805556, -0.444444))
    close(server.given(2), server.center)
    close(server.given(0), START["x"])


@pytest.mark.parametrize("refresh", [False, True])
def test_ringleader(refresh):
    server = Server(merge.ringleader())
    enter = ENTER | MergeOp.FETCH if refresh else ENTER
    for worker in KEPT[:-1]:
        server.reports(worker, enter)
    for worker in (2, 0):
        server.reports(worker, STEP)
    server.reports(1, STEP | MergeOp.CLEAR)
    server.reports(0, enter)
    close(server.center, (0.25, 0.805556))
    close(server.given(0), server.center if refresh else (0.555556, 0.138889))
    close(server.given(1), server.center)
    close(server.given(2), (0.805556, -0.444444))


DELAYED = {
    "-c": ({"strength": 0.4}, (1.031029, -0.210169)),
    "-a": ({"strength": 0.2, "decay": 0.95}, (1.018516, -0.220058)),
    "none": ({"strength": 0.0}, (0.875, 0.125)),  # asynchronous SGD
}


@pytest.mark.parametrize("name", DELAYED)
def test_delay_compensation(name):
    how, expected = DELAYED[name]
    server = Server(merge.delay_compensated(**how))
    for worker in KEPT:
        server.reports(worker)
    close(server.center, expected)
    if name == "-c":
        close(server.given(0), (0.99, 0.29))
        close(server.given(1), (1.295820, -0.927580))


def test_the_mean_square_of_the_server():
    """One q for all: each step's gradient enters the same average."""
    server = Server(merge.delay_compensated(strength=0.2, decay=0.9, per_worker=False))
    c, q, given = np.float64([1, -1]), np.zeros(2), [np.float64([1, -1])] * 3
    for worker in KEPT:
        server.workers.works(worker)
        g = np.float64(server.workers.replicas[worker].carry["grad_sum"]["x"])
        server.workers.seen[worker] -= 1  # the same once more, in the report
        q = 0.9 * q + 0.1 * g**2
        c = c - ETA * (g + 0.2 / np.sqrt(q + 1e-7) * g**2 * (c - given[worker]))
        given[worker] = c
        server.reports(worker)
    close(server.center, c)
    assert "mean_square" not in server.workers.replicas[0].carry


# Ringleader against its tables as the paper writes them


@cache
def programs(make, op):
    return jax.jit(lambda *of: make().apply(*of, op))


def one(worker, workers):
    return merge.stats([1], learning_rate=0.1, num_workers=workers, worker=[worker])


class Tables:
    """G_i and b_i of two tables, in float64."""

    def __init__(self, workers):
        self.c = np.zeros(2)
        self.first, self.second = (
            [np.zeros((workers, 2)), np.zeros(workers)] for _ in range(2)
        )
        self.updated = np.zeros(workers, bool)

    def reports(self, worker, g):
        """Return whether the report makes a step."""
        table = self.second if self.updated[worker] else self.first
        table[0][worker] += g
        table[1][worker] += 1
        if self.updated[worker] or not self.first[1].all():
            return False
        self.updated[worker] = True
        self.c = self.c - 0.1 * np.mean(self.first[0] / self.first[1][:, None], 0)
        if self.updated.all():
            empty = [np.zeros_like(x) for x in self.first]
            self.first, self.second = self.second, empty
            self.updated[:] = False
        return True


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_ringleader_keeps_two_tables(order):
    rng, oracle = np.random.default_rng(0), Tables(3)
    merging = merge.ringleader()
    state = merging.init(jnp.zeros(2))
    replicas = [
        local.new_replica(local.gradient(), jnp.zeros(2), requires=merging.requires)
    ] * 3
    for worker in order:
        g = rng.normal(size=2)
        others = oracle.updated.sum()
        op = STEP if oracle.reports(worker, g) else ENTER
        if op == STEP and others == 2:
            op |= MergeOp.CLEAR
        carry = {**replicas[worker].carry, "grad_sum": jnp.float32(g)}
        replica = replicas[worker]._replace(carry=carry)
        apply = programs(merge.ringleader, op)
        state, (replicas[worker],) = apply(state, (replica,), one(worker, 3))
        np.testing.assert_allclose(merging.model(state)[0], oracle.c, atol=2e-6)


def test_a_step_of_a_worker_that_has_left():
    """Its gradient stays in the table; the step has no member, and ends the phase."""
    merging = merge.ringleader()
    state = merging.init(jnp.zeros(2))
    carry = local.empty_buffers(jnp.zeros(2), merging.requires)
    first, second = (
        Replica(jnp.zeros(2), (), (), {**carry, "grad_sum": jnp.float32(g)})
        for g in ((1, 0), (0, 1))
    )
    state, (first,) = merging.apply(state, (first,), one(0, 2), ENTER)
    state, (second,) = merging.apply(state, (second,), one(1, 2), STEP)
    state, (second,) = merging.apply(state, (second,), one(1, 2), ENTER)
    close(merging.model(state)[0], (-0.05, -0.05))
    none = merge.stats([], num_workers=0)
    state, () = merging.apply(state, (), none, APPLY | MergeOp.CLEAR)
    close(merging.model(state)[0], (-0.1, -0.1))
    # the first table now has worker 1's last gradient; 0 comes back
    state, (first,) = merging.apply(state, (first,), one(0, 2), STEP)
    close(merging.model(state)[0], (-0.15, -0.15))


@pytest.mark.parametrize("make", [merge.gradient_sums, merge.malenia])
def test_apply_alone_steps_at_the_last_report_s_learning_rate(make):
    """An absent member is no report; its learning rate may be NaN."""
    merging = make()
    carry = local.empty_buffers(jnp.zeros(2), merging.requires)
    replica = Replica(jnp.zeros(2), (), (), {**carry, "grad_sum": jnp.float32([2, -4])})
    state = merging.init(jnp.zeros(2))
    for steps, eta in ((1, 0.1), (1, 0.5), (0, np.nan)):
        stats = merge.stats([steps], learning_rate=eta, num_workers=1)
        state, (replica,) = merging.apply(state, (replica,), stats, ENTER)
    none = merge.stats([], num_workers=0)
    state, () = merging.apply(state, (), none, APPLY)
    close(merging.model(state)[0], (-1, 2))


@pytest.mark.parametrize("make", [merge.gradient_sums, merge.malenia])
def test_a_report_changes_no_model_and_nothing_held_changes_nothing(make):
    server = Server(make())
    server.reports(0, STEP)
    before = server.center
    server.reports(0, ENTER)
    close(server.center, before)
    state, none = server.merging.init(START), merge.stats([], num_workers=0)
    after, () = server.merging.apply(state, (), none, APPLY)
    jax.tree.map(np.testing.assert_array_equal, after, state)


class FormulasTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_formulas_agree_with_numpy(self):
        """In float32 for any dtype of the gradients."""
        rng = np.random.default_rng(0)
        g, c, s, q = (cases.random(rng, cases.SHAPES) for _ in range(4))
        q = jax.tree.map(jnp.abs, q)

        def every(g, c, s, q):
            return (
                formulas.compensated_gradient(g, c, s, strength=0.3),
                formulas.compensated_gradient(g, c, s, strength=0.3, mean_square=q),
                formulas.running_mean_square(q, g, 0.9),
                formulas.joined_mean(q, 3.0, g),
                formulas.scaffold_control(g, c, s, 0.7),
            )

        def expected(g, c, s, q):
            g, c, s, q = (np.float64(x) for x in (g, c, s, q))
            return (
                g + 0.3 * g**2 * (c - s),
                g + 0.3 / np.sqrt(q + 1e-7) * g**2 * (c - s),
                0.9 * q + 0.1 * g**2,
                (g - q) / 4,
                (c - s) / 0.7 - g,
            )

        found = self.variant(every)(g, c, s, q)
        for k, tree in enumerate(found):
            for x, *of in zip(*map(jax.tree.leaves, (tree, g, c, s, q)), strict=True):
                assert x.dtype == jnp.float32
                np.testing.assert_allclose(x, expected(*of)[k], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"strength": -1}, "strength=-1"), ({"decay": 1.0}, "decay=1.0")],
)
def test_settings_of_delay_compensation(settings, words):
    with pytest.raises(ValueError, match=words):
        merge.delay_compensated(**settings)
