"""Costs, drift, links and machines: manual calculations, and every error."""

import dataclasses
import math
import pickle

import pytest

from hetjax.machine import Cost, Drift, Link, Machine, Profile

COST = Cost(fixed=0.5, per_example=0.25, per_nonzero=0.125)
LINK = Link(latency=1.0, bandwidth=10.0)


def worker(name="a", place=(), **changes):
    return Profile(name, "gpu", COST, place=place, **changes)


def machine(*workers, links=None, **changes):
    return Machine("m", workers or (worker(),), links or {"": LINK}, **changes)


def tree_of_three():
    """Two workers in node a (each in its own rack), one in node b."""
    workers = (worker("0", ("a", "x")), worker("1", ("a", "y")), worker("2", ("b",)))
    return machine(*workers, links={"": LINK, "a": LINK, "a/x": LINK})


def test_seconds_of_a_step():
    assert COST.seconds(8, 4) == 0.5 + 2.0 + 0.5
    assert worker(factor=2.0).seconds(8, 4, time=7.0) == 6.0


@pytest.mark.parametrize(
    # sin is 0, 1, 0, -1 at the quarters of a period of 8 s
    ("time", "multiplier"),
    [(0.0, 1.0), (2.0, 1.5), (4.0, 1.0), (6.0, 0.5), (10.0, 1.5)],
)
def test_drift_at_the_quarters_of_its_period(time, multiplier):
    drift = Drift(amplitude=0.5, period=8.0)
    # sin(pi) is 1.2e-16 in floating point, not 0
    assert drift.at(time) == pytest.approx(multiplier, abs=1e-15)
    seconds = worker(factor=2.0, drift=drift).seconds(8, 4, time)
    assert seconds == pytest.approx(6.0 * multiplier)


def test_phase_of_the_drift_is_in_periods():
    drift = Drift(amplitude=0.5, period=8.0, phase=0.25)
    assert drift.at(0.0) == 1.5
    assert Drift().at(0.3) == 1.0


@pytest.mark.parametrize(
    # latency 1 s, 100 bytes at 10 bytes/s: one copy takes 10 s
    ("topology", "members", "seconds"),
    [
        ("ring", 1, 2 + 2 * 10),
        ("ring", 2, 2 * 1 + 10),
        ("ring", 4, 2 * 3 + 2 * 0.75 * 10),
        ("tree", 1, 2 + 2 * 10),
        ("tree", 2, 2 * 11),
        ("tree", 4, 2 * 2 * 11),
        ("tree", 5, 2 * 3 * 11),
        ("central", 1, 2 + 2 * 10),
        ("central", 4, 2 + 2 * 4 * 10),
    ],
)
def test_seconds_of_a_merge(topology, members, seconds):
    link = Link(latency=1.0, bandwidth=10.0, topology=topology)
    assert link.seconds(members, 100) == seconds


@pytest.mark.parametrize(
    ("members", "key"),
    [
        ((0,), "a/x"),
        ((1,), "a"),  # a/y has no link of its own
        ((2,), ""),  # neither has b
        ((0, 1), "a"),
        ((1, 0), "a"),
        ((0, 2), ""),
        ((1, 2), ""),
        ((0, 2, 1), ""),  # the first and the last worker alone do not decide
    ],
)
def test_link_of_is_the_deepest_common_one(members, key):
    assert tree_of_three().link_of(members) == key


def test_link_of_compares_whole_names():
    m = machine(worker("0", ("n1",)), worker("1", ("n10",)), links={"": LINK})
    m = dataclasses.replace(m, links={"": LINK, "n1": LINK})
    assert m.link_of((0, 1)) == ""
    assert m.link_of((1,)) == ""


def test_worker_infos_hold_expected_seconds():
    m = machine(worker("a"), worker("b", ("n",), factor=2.0, drift=Drift(0.5)))
    first, second = m.worker_infos(4.0)
    assert first == (0, "a", "gpu", (), 0.5, 0.25 + 4 * 0.125, "a", True)
    assert second == (1, "b", "gpu", ("n",), 1.0, 1.5, "b", True)
    assert second.seconds(8) == 13.0


def test_without_noise_changes_nothing_else():
    m = machine(noise=0.3, seed=5)
    assert m.without_noise() == machine(noise=0.0, seed=5)
    assert m.noise == 0.3


def test_machines_are_picklable():
    m = tree_of_three()
    assert pickle.loads(pickle.dumps(m)) == m


NOT_A_NUMBER = (math.nan, math.inf, "fast", None)


@pytest.mark.parametrize("bad", [-1.0, *NOT_A_NUMBER])
@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("fixed", lambda x: Cost(x, 1.0)),
        ("per_example", lambda x: Cost(1.0, x)),
        ("per_nonzero", lambda x: Cost(1.0, 1.0, x)),
        ("amplitude", lambda x: Drift(amplitude=x)),
        ("period", lambda x: Drift(period=x)),
        ("factor", lambda x: worker(factor=x)),
        ("latency", lambda x: Link(latency=x, bandwidth=1.0)),
        ("bandwidth", lambda x: Link(latency=1.0, bandwidth=x)),
        ("noise", lambda x: machine(noise=x)),
        ("seed", lambda x: machine(seed=x)),
        ("nonzeros_per_example", lambda x: machine().worker_infos(x)),
    ],
)
def test_invalid_numbers(field, build, bad):
    with pytest.raises(ValueError, match=f"^{field}=.*: pass a "):
        build(bad)


@pytest.mark.parametrize(
    ("message", "build"),
    [
        ("period=0.0: pass a number above 0", lambda: Drift(period=0.0)),
        ("factor=0.0: pass a number above 0", lambda: worker(factor=0.0)),
        (
            "bandwidth=0.0: pass a number above 0",
            lambda: Link(latency=1.0, bandwidth=0.0),
        ),
        ("phase=nan: pass a finite number", lambda: Drift(phase=math.nan)),
        (
            "amplitude=1.0: pass a number from 0 to below 1",
            lambda: Drift(amplitude=1.0),
        ),
        ("name=5: pass a string", lambda: Profile(5, "cpu", Cost(1.0, 0.0))),
        ("cost=1.0: pass a Cost", lambda: Profile("a", "cpu", 1.0)),
        ("a Cost of zeros would", lambda: Cost(0.0, 0.0)),
        ("seed=1.5: pass a whole number", lambda: machine(seed=1.5)),
        (
            "topology='star': choose one of ring, tree",
            lambda: Link(latency=1, bandwidth=1, topology="star"),
        ),
        (
            "place='node03': pass a sequence of strings",
            lambda: worker(place=("node03")),
        ),
        ("place=.*: pass a tuple of non-empty names", lambda: worker(place=("a/b",))),
        ("place=.*: pass a tuple of non-empty names", lambda: worker(place=("",))),
        (r"place=.*: pass a sequence of strings", lambda: worker(place=(3,))),
        ("at least one worker", lambda: Machine("m", (), {"": LINK})),
        ("two workers have the name 'a'", lambda: machine(worker(), worker())),
        ("links=Link.*: pass a dictionary", lambda: Machine("m", (worker(),), LINK)),
        ("no root link", lambda: Machine("m", (worker("a", ("n",)),), {"n": LINK})),
        (
            "below the link 'nod'; places are: '', 'n'",
            lambda: machine(worker("a", ("n",)), links={"": LINK, "nod": LINK}),
        ),
        ("noise=1000000.0: pass a number from 0 to 3.0", lambda: machine(noise=1e6)),
        (
            r"with_workers_per_device: 200001 workers are too many, .* 100,000: each",
            lambda: machine().with_workers_per_device(200_001),
        ),
        (
            r"number=1.5: pass a whole number of at least 1",
            lambda: machine().with_workers_per_device(1.5),
        ),
        ("at least one member", lambda: machine().link_of(())),
        ("at least one member, not 0", lambda: LINK.seconds(0, 8)),
    ],
)
def test_refusals(message, build):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "make",
    [lambda: Link(1e9, 1e-6), lambda: Profile("a", "cpu", Cost(1.0, 0.0), 2.0)],
)
def test_numbers_that_could_be_swapped_are_given_by_name(make):
    with pytest.raises(TypeError, match="positional arguments? but"):
        make()
