"""Asynchronous servers: grace periods, buffers, steps by speed, rescaled rates."""

import numpy as np
import pytest
from policy_driver import follow, infos, machine, timeline
from small_server import Pushed, momentum, operations, play

from hetjax.machine import Join, Leave, Timer
from hetjax.schedule import (
    MergeAction,
    MergeOp,
    asynchronous,
    dynamic_local_updates,
    random_partner,
)

SCALE = 3**-0.5
CLOCK = ["4/0", "6/1", "8/0", "12/0", "12/1", "14/2"]
ALL = "0:1x8 1:1x8 2:1x8"


def near(values, expected):
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_asynchronous_diloco():
    policy = asynchronous(batch_size=1, local_steps=2)
    run = play(policy, momentum(scale=SCALE), moves=True)
    assert run.reports == CLOCK
    near(run.server.center, (-1.234110, 1.562257))
    near(run.given[:2], [(0.145599, 1.374250), (0.074891, 0.923010)])


# Grace periods


def test_workers_of_a_grace_period_continue_together_at_its_end():
    """The last period ends at once, since every worker is in it."""
    policy = asynchronous(batch_size=1, local_steps=2, grace=3)
    run = play(policy, momentum(scale=SCALE), 6, moves=True)
    assert operations(run) == [
        "4/0: 0 push",
        "6/1: 1 push",
        "7/timer: 01 fetch",
        "11/0: 0 push",
        "13/1: 1 push",
        "14/2: 2 push, 012 fetch",
        "18/0: 0 push",
    ]
    near(run.server.center, (-0.774986, 1.214888))
    near(run.given[1], (-1.217883, 1.224641))
    near(run.given[2], (-1.217883, 1.224641))


def test_a_report_exactly_at_the_end_joins():
    policy = asynchronous(batch_size=8, grace=2.0)
    assert timeline(policy, machine(1.0, 3.0, 9.0), 6) == [
        ALL,
        "1 w0 from 0 > merge 0 push",
        "1 merged 0",
        "3 w1 from 0 > merge 1 push",
        "3 merged 1",
        "3 timer grace 1 > merge 01 fetch 0:1x8 1:1x8",
        "3 merged 01",
    ]


def test_a_period_of_no_length_joins_ties():
    policy = asynchronous(batch_size=8, grace=0.0)
    table = timeline(policy, machine(1.0, 1.0, 9.0), 5)
    assert [row for row in table[1:] if "merged" not in row] == [
        "1 w0 from 0 > merge 0 push",
        "1 w1 from 0 > merge 1 push",
        "1 timer grace 1 > merge 01 fetch 0:1x8 1:1x8",
    ]


def test_a_timer_of_a_period_that_has_ended_changes_nothing():
    """All are in the first period before its end; the second one has another timer."""
    policy = asynchronous(batch_size=8, grace=9.0)
    events = (0, 1, 0, Timer("grace 1", 4.0), Timer("grace 2", 5.0))
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:1x8 1:1x8",
        "merge 0 push",
        "merge 1 push merge 01 fetch 0:1x8 1:1x8",
        "merge 0 push",
        "",
        "merge 0 fetch 0:1x8",
    ]


def test_who_leaves_does_not_continue_and_nobody_waits_for_it():
    policy = asynchronous(batch_size=8, grace=9.0)
    events = (0, 1, Leave(1, 2.0, lost=True), Join(1, 3.0), Leave(2, 4.0, lost=True), 1)
    assert follow(policy, infos(1.0, 1.0, 1.0), events) == [
        ALL,
        "merge 0 push",
        "merge 1 push",
        "",
        "1:1x8",  # it begins from the present model
        "",
        "merge 1 push merge 01 fetch 0:1x8 1:1x8",
    ]
    ends = (0, Leave(2, 2.0, lost=True), Leave(1, 2.0, lost=True))
    assert follow(policy, infos(1.0, 1.0, 1.0), ends)[-1] == "merge 0 fetch 0:1x8"


def test_a_push_and_a_fetch_have_one_transfer_each():
    policy = asynchronous(batch_size=8, grace=9.0)
    run = play(policy, Pushed(), 3, (1, 1, 1))
    assert [m for _, actions in run.actions for m in actions.merges] == [
        *(MergeAction((k,), op=MergeOp.PUSH, transfers=1) for k in range(3)),
        MergeAction((0, 1, 2), op=MergeOp.FETCH, transfers=1),
    ]
    shared = asynchronous(batch_size=8, grace=9.0, transfers=0)
    run = play(shared, Pushed(), 3, (1, 1, 1))
    assert {m.transfers for _, actions in run.actions for m in actions.merges} == {0}


# Buffers


class Buffer(Pushed):
    """FedBuff: sum_i D_i / sqrt(1 + tau_i) / K at the K-th report."""

    entries = ()

    def accumulate(self, k, difference, staleness, applies):
        self.entries += (difference / (1 + staleness) ** 0.5,)

    def apply(self):
        self.center = self.center - np.mean(self.entries, 0)
        self.entries = ()


def test_a_buffer_is_applied_when_it_is_full():
    policy = asynchronous(batch_size=1, local_steps=2, buffer=2)
    run = play(policy, Buffer(), moves=True)
    assert run.reports == CLOCK
    assert run.staleness == [0, 0, 1, 0, 1, 2]
    near(run.server.center, (0.005800, 0.544429))
    near(run.given[:2], [(0.552237, 0.457567)] * 2)
    assert operations(run) == [
        "4/0: 0 accumulate+fetch",
        "6/1: 1 accumulate+apply+fetch",
        "8/0: 0 accumulate+fetch",
        "12/0: 0 accumulate+apply+fetch",
        "12/1: 1 accumulate+fetch",
        "14/2: 2 accumulate+apply+fetch",
    ]


def test_a_buffer_of_one_is_applied_at_every_report():
    policy = asynchronous(batch_size=1, buffer=1)
    plain = play(asynchronous(batch_size=1), Pushed())
    run = play(policy, Buffer())
    assert run.reports == plain.reports
    assert all("accumulate+apply+fetch" in row for row in operations(run))


def test_what_a_lost_worker_put_into_the_buffer_stays():
    policy = asynchronous(batch_size=8, buffer=2)
    events = (0, Leave(0, 2.0, lost=True), 1)
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:1x8 1:1x8",
        "merge 0 accumulate+fetch 0:1x8",
        "",
        "merge 1 accumulate+apply+fetch 1:1x8",
    ]


# Steps by speed, and rates


class Delayed(Pushed):
    """Delayed Nesterov with N = 3, q = 0, g = .7 and b = .9 (L.3)."""

    entries, momentum, count = np.zeros(2), np.zeros(2), 0

    def push(self, k, difference, staleness):
        self.entries, self.count = self.entries + difference, self.count + 1
        step = difference / 3
        if self.count % 3 == 0:
            self.momentum = 0.9 * self.momentum + self.entries / 3
            self.entries = np.zeros(2)
            step = step + 0.9 * self.momentum
        self.center = self.center - 0.7 * step


def test_dynamic_local_updates_with_delayed_nesterov():
    rule = dynamic_local_updates(7, 1)
    run = play(asynchronous(batch_size=1, local_steps=rule), Delayed(), moves=True)
    assert run.reports == ["12/1", "14/0", "14/2", "24/1", "28/0", "28/2"]
    near(run.server.center, (-0.984329, 1.051237))
    near(run.given[:2], [(-0.025271, 0.288391), (0.037500, -0.026745)])


def rates(policy, workers):
    _, actions = policy.init(workers, 100)
    return [local_round.lr_scale for _, local_round in actions.dispatch]


def test_rescaled_rates():
    policy = asynchronous(batch_size=1, rescaled=True)
    near(rates(policy, infos(2.0, 3.0, 7.0)), (0.650794, 0.976190, 2.277778))
    assert rates(policy, infos(5.0, 5.0)) == [1.0, 1.0]
    run = play(policy, Pushed())
    near(run.server.center, (0.343631, 1.155990))


def test_rescaled_rates_of_those_who_are_active():
    """Twice the seconds, twice the rate; the rates per second sum to the plain sum."""
    policy = asynchronous(batch_size=1, rescaled=True)
    workers = infos(1.0, 2.0, 4.0)
    absent = (*workers[:2], workers[2]._replace(present=False))
    near(rates(policy, absent), (0.75, 1.5))
    near(np.divide(rates(policy, workers), (1.0, 2.0, 4.0)), [7 / 12] * 3)


def test_rescaled_rates_follow_batch_sizes():
    """A step takes 0.5 s + 0.5 s per example: 1 s and 2 s."""
    policy = asynchronous(batch_size=(1, 3), rescaled=True)
    near(rates(policy, infos(1.0, 1.0)), (0.75 / 3, 1.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grace": -1.0}, "grace=-1.0: pass a number of at least 0"),
        ({"grace": 1.0, "buffer": 2}, "pass grace or buffer, not both"),
        ({"buffer": 2, "max_staleness": 1}, "pass buffer or max_staleness, not both"),
        (
            {"grace": 1.0, "partners": random_partner()},
            "pass grace or partners, not both",
        ),
        ({"grace": 1.0, "transfers": 1}, "transfers=1: pass 0 or 2"),
        ({"buffer": 0}, "buffer=0: pass a whole number of at least 1"),
        ({"rescaled": True}, r"worker 1 \(w1\) is expected to take 0 s: pass rescaled"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        asynchronous(batch_size=8, **settings).init(infos(1.0, 0.0), 1000)
