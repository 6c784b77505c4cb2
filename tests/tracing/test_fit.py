"""Fits: the machine of a trace is the one that was simulated."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import HEADER, NUM_EXAMPLES, profiles, recorded

from hetjax.engine.decisions import decisions
from hetjax.machine import (
    Arrival,
    Cost,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    ScriptedFault,
    SimulatedClock,
)
from hetjax.schedule import Actions, Policy, asynchronous, bounded_delay, rounds
from hetjax.schedule.policies.calibration_rounds import calibration_rounds
from hetjax.tracing.fit import disturbances, fit_machine
from hetjax.tracing.trace import Trace

PROBES = calibration_rounds(batch_sizes=(16, 32, 64), local_steps=(1, 8), repeats=5)
LINKS = {"": Link(latency=0.01, bandwidth=1e18, topology="central")}
LAWS = settings(max_examples=15, deadline=None, derandomize=True)
# of a clock's sums, and of a least squares problem with 4 unknowns
ROUNDING = 1e-8


def machine(*costs, noise=0.0, **changes):
    return Machine("m", profiles(*costs, **changes), LINKS, noise)


def fitted(m, policy=PROBES, **settings):
    _, trace = recorded(policy, m, **settings)
    return fit_machine(trace, "again")


def seconds(cost, local_steps, size, nonzeros=0.0):
    """The seconds of a local round alone, without noise."""
    return cost.per_round + local_steps * cost.seconds(size, nonzeros)


def assert_same_costs(found, true, tolerance=ROUNDING):
    """Compare the workers' costs, relative to the seconds of the shortest round."""
    for f, t in zip(found.workers, true.workers, strict=True):
        unit = seconds(t.cost, 1, 16)
        expected = dataclasses.astuple(t.cost)
        assert dataclasses.astuple(f.cost) == pytest.approx(
            expected, abs=tolerance * unit, rel=tolerance
        )


def event_times(m, policy, count=200):
    """The times of the policy's events on the machine."""
    clock = SimulatedClock(m, seed=0)
    run = decisions(policy, clock, num_examples=NUM_EXAMPLES, num_bytes=1e6)
    return [event.time for event, _ in itertools.islice(run, 1, count)]


# Costs and contention


def test_a_disturbed_calibration_says_what_is_odd():
    """Two equal devices 2.5 times apart, noise, and a poor fit; one that is slowed on
    purpose, or of another kind, is no doubt."""
    quiet = machine(Cost(0.5, 0.01), Cost(0.6, 0.01), noise=0.1)
    assert disturbances(quiet, 0.1) == []
    noisy = machine(Cost(0.5, 0.01), Cost(1.25, 0.025), noise=0.38)
    assert disturbances(noisy, 0.3) == [
        "the costs fit the rounds only to 30 %",
        "steps of one kind vary by 38 %",
        "w1 is 2.5 times as slow as w0, a device of its kind",
    ]
    for changes in ({"factor": 2.5}, {"kind": "other"}):
        one, other = noisy.workers
        other = dataclasses.replace(other, **changes)
        meant = dataclasses.replace(noisy, workers=(one, other), noise=0.0)
        assert disturbances(meant, 0.1) == []


def test_a_link_that_takes_no_time_per_byte_says_so():
    assert "links root of any bandwidth" in repr(machine(Cost(0.5, 0.01)))
    slower = dataclasses.replace(
        machine(Cost(1.0, 0.0)), links={"": Link(latency=0.0, bandwidth=2e10)}
    )
    assert "links root 20 GB/s" in repr(slower)


def test_a_calibration_finds_the_machine():
    """All at once they are 2.5 times as slow. They are equal, so that no worker is
    alone for a part of a round."""
    cost = Cost(0.5, 0.01, per_round=0.25)
    fit = fitted(machine(cost, cost, cost, contention=2.5))
    assert_same_costs(fit.machine, machine(cost, cost, cost))
    contentions = [w.contention for w in fit.machine.workers]
    assert contentions == pytest.approx([2.5] * 3)
    assert fit.machine.noise == pytest.approx(0.0, abs=ROUNDING)
    assert fit.error <= fit.worst < ROUNDING
    assert (fit.machine.name, fit.machine.calibration) == ("again", None)
    names = [(w.name, w.kind, w.duty, w.factor) for w in fit.machine.workers]
    assert names == [(f"w{k}", "gpu", 1.0, 1.0) for k in range(3)]


def after(line, seconds):
    """A line of a trace, so many seconds later."""
    times = {k: line[k] + seconds for k in ("time", "start", "finish") if k in line}
    return line | times


def test_two_speeds_side_by_side_are_a_range():
    """The first half of the run has the contention 1.5, the second 2.5."""
    cost = Cost(0.5, 0.01)
    machines = [machine(cost, cost, contention=c) for c in (1.5, 2.5)]
    one, other = (recorded(PROBES, m)[1] for m in machines)
    end = max(line["finish"] for line in one.lines if "finish" in line)
    rounds = [line for line in one.lines if "end" not in line]
    more = [after(line, end + 1) for line in other.lines if next(iter(line)) != "start"]
    found = fit_machine(Trace(one.header, [*rounds, *more]), "both").machine
    least, most = found.extremes()
    for worker, low, high in zip(
        found.workers, least.workers, most.workers, strict=True
    ):
        assert worker.contention_range == pytest.approx((1.5, 2.5))
        assert worker.contention == pytest.approx(2.0, abs=0.1)
        assert (low.contention, high.contention) == worker.contention_range
        assert low.contention_range == high.contention_range == ()
    assert least.extremes() is None
    alone = found.subset(["w0"])
    assert alone.extremes() is None
    assert fit_machine(one).machine.extremes() is None


costs = st.builds(
    Cost,
    fixed=st.floats(0.1, 1.0),
    per_example=st.floats(0.0, 0.1),
    per_round=st.floats(0.0, 1.0),
)


@LAWS
@given(costs=st.lists(costs, min_size=1, max_size=3))
def test_costs_of_workers_that_do_not_contend(costs):
    m = machine(*costs)
    fit = fitted(m)
    assert_same_costs(fit.machine, m)
    assert [w.contention for w in fit.machine.workers] == pytest.approx(
        [1] * len(costs)
    )
    assert fit.worst < ROUNDING


@LAWS
@given(cost=costs, contention=st.floats(1.0, 8.0), n=st.integers(2, 4))
def test_contention_of_equal_workers(cost, contention, n):
    m = machine(*[cost] * n, contention=contention)
    found = fitted(m).machine
    assert_same_costs(found, m)
    assert [w.contention for w in found.workers] == pytest.approx([contention] * n)


@LAWS
@given(seconds=st.lists(st.floats(0.2, 1.0), min_size=2, max_size=3))
def test_contention_of_unequal_workers(seconds):
    """c = 2. A round that overlaps with the others for a share s of its time counts as
    alone if s < 0.1, and then is up to 10 % too long; as contended if s > 0.5.

    A contended round runs at 1 / c of its speed for the share s and alone for the rest,
    so that it seems to be slowed by ((1 - s / 2)^-1 - 1) / s: 2 / 3 at s = 1 / 2, 1 at
    s = 1. If alone is up to 1.1 times too long, the slowdown is 0.42 to 1.
    """
    costs = [Cost(0.9 * s, 0.1 * s / 16) for s in seconds]
    found = fitted(machine(*costs, contention=2.0)).machine
    assert_same_costs(found, machine(*costs), tolerance=0.1)
    for worker in found.workers:
        assert 1 + 0.42 <= worker.contention <= 2 + 1e-6


def test_non_zeros_are_told_from_examples():
    """Every step has its own non-zeros, drawn at random: they are no multiples."""
    random = np.random.default_rng(0)
    cost = Cost(0.5, 0.01, 1e-3, 0.25)
    found = fitted(
        machine(cost, cost),
        nonzeros=lambda local_round: random.integers(
            0, 9 * local_round.size, local_round.local_steps
        ).tolist(),
    ).machine
    assert_same_costs(found, machine(cost, cost))


def slowed_threefold(step_mode="dispatch", **changes):
    """Two equal workers, and the fit; worker 1 rests for two thirds of its time."""
    cost = Cost(0.5, 0.01, per_round=0.25)
    first, second = profiles(cost, cost, **changes)
    second = dataclasses.replace(
        second, factor=3.0, duty=1 / 3, bursts=step_mode != "dispatch"
    )
    m = Machine("m", (first, second), LINKS)
    step_modes = {first.kind: step_mode}
    header = {**HEADER, "slowdowns": [1.0, 3.0], "step_modes": step_modes}
    return m, fitted(m, header=header).machine


def test_a_worker_slowed_on_purpose_has_the_cost_of_its_device():
    m, found = slowed_threefold()
    assert_same_costs(found, m)
    assert [(w.factor, w.duty) for w in found.workers] == [(1.0, 1.0), (3.0, 1 / 3)]


@pytest.mark.parametrize("step_mode", ["dispatch", "fused"])
def test_a_worker_contends_with_a_slowed_one_as_well(step_mode):
    """Worker 1 computes for a third of the time: worker 0 takes 4 / 3 as long.

    If all its steps are one program, worker 0 takes twice as long, and then is alone.
    """
    _, found = slowed_threefold(step_mode, contention=2.0)
    assert [w.bursts for w in found.workers] == [False, step_mode == "fused"]
    contentions = [w.contention for w in found.workers]
    assert contentions == pytest.approx([2.0, 2.0], rel=0.1)


# The link


def in_turn(*sets, rounds=5):
    """The members of a set compute and merge, `rounds` times; then the next set.

    Their next round begins when the merge is done.
    """
    turns = [members for members in sets for _ in range(rounds)]

    def go_on(turns, merges=()):
        local_round = tuple((k, LocalRound(1, 8)) for k in turns[0]) if turns else ()
        return (turns, set(turns[0] if turns else ())), Actions(merges, local_round)

    def react(state, event):
        turns, owing = state
        if not isinstance(event, Arrival):
            return state, Actions()
        owing = owing - {event.worker}
        if owing:
            return (turns, owing), Actions()
        return go_on(turns[1:], (MergeAction(turns[0]),))

    return Policy(lambda infos, n: go_on(turns), react)


def test_the_link_and_the_workers_transfers():
    """1 MB: 0.02 s of latency there and back, and 1, 0.25 and 0 s each way."""
    m = machine(*[Cost(1.0, 0.0)] * 3)
    ways = (1e-6, 0.25e-6, 0.0)
    workers = tuple(
        dataclasses.replace(w, per_byte=way)
        for w, way in zip(m.workers, ways, strict=True)
    )
    m = dataclasses.replace(m, workers=workers)
    sets = ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2))
    found = fitted(m, in_turn(*sets), num_bytes=1e6).machine
    assert found.links[""].latency == pytest.approx(0.01)
    assert [w.per_byte for w in found.workers] == pytest.approx(ways, abs=1e-15)
    for action in map(MergeAction, sets):
        times = [SimulatedClock(x, seed=0).merge(action, 1e6) for x in (m, found)]
        assert times[1] == pytest.approx(times[0], abs=1e-9)


def test_without_merges_the_link_takes_no_time():
    found = fitted(machine(Cost(1.0, 0.0)), in_turn((0,)), count=3).machine
    assert found.links[""].seconds(2, 1e9) == pytest.approx(0.0, abs=1e-6)
    assert found.workers[0].per_byte == 0.0


# The same run again, from traces of ordinary runs


@pytest.mark.parametrize("contention", [1.0, 2.0])
@pytest.mark.parametrize(
    ("policy", "latency"),
    [(rounds(batch_size=8, local_steps=3), 0.25), (asynchronous(batch_size=8), 0.0)],
)
def test_the_same_run_takes_as_long_on_the_fitted_machine(policy, latency, contention):
    """No worker computed alone, so the cost of rounds includes the contention.

    (If merges of `asynchronous` took time, workers would at times compute alone.)
    """
    costs = (Cost(0.5, 0.01, per_round=0.1), Cost(1.0, 0.02), Cost(0.75, 0.0))
    m = machine(*costs, contention=contention)
    m = dataclasses.replace(
        m, links={"": Link(latency=latency, bandwidth=1e18, topology="central")}
    )
    found = fitted(m, policy, count=200, num_bytes=1e6).machine
    times = event_times(found, policy)
    assert times == pytest.approx(event_times(m, policy), rel=1e-6)


def test_cancelled_rounds_are_no_part_of_the_link_s_time():
    """Its worker arrived long ago, and fetches after the merge of another."""
    policy = bounded_delay(batch_size=8, max_delay=3, stop="cancel")
    m = machine(Cost(1.0, 0.0), Cost(1.3, 0.0), Cost(1.9, 0.0))
    _, trace = recorded(policy, m, count=200, num_bytes=1e6)
    assert sum("cancel" in line for line in trace.lines) > 20
    found = fit_machine(trace).machine
    assert found.links[""].latency == pytest.approx(0.01)
    assert [w.per_byte for w in found.workers] == pytest.approx([0.0] * 3, abs=1e-15)


def test_a_worker_without_rounds_keeps_its_expected_cost():
    """Worker 1 gets no rounds, so it has too few to be measured."""
    costs = Cost(0.5, 0.01), Cost(0.25, 0.125)
    found = fitted(machine(*costs), in_turn((0,), rounds=9)).machine
    assert found.workers[1].cost == costs[1]
    assert found.workers[0].cost.seconds(8) == pytest.approx(costs[0].seconds(8))


def test_without_measurements_the_error_is_nan():
    fit = fitted(machine(Cost(0.5, 0.01)), count=1)
    assert fit.machine.workers[0].cost == Cost(0.5, 0.01)
    assert math.isnan(fit.error)


# Noise: MAD has 37 % of a standard deviation's efficiency, so its standard error is
# sigma / sqrt(0.37 * 2 n); the tolerance is four of these


@pytest.mark.parametrize("sigma", [0.05, 0.3])
def test_noise_is_that_of_a_step(sigma):
    repeats = 200
    policy = calibration_rounds(
        batch_sizes=(16, 32, 64), local_steps=(1, 8), repeats=repeats
    )
    fit = fitted(machine(Cost(0.5, 0.01), noise=sigma), policy)
    error = 1 / math.sqrt(0.37 * 2 * 3 * repeats)
    assert fit.machine.noise == pytest.approx(sigma, rel=4 * error)
    # for rounds of one step the median of |z| is 0.67; rounds of eight steps have less
    assert fit.error < 0.67 * sigma
    assert fit.error < fit.worst


def test_noise_does_not_make_the_fit_faster():
    """Noise has mean one, so rounds take their cost on average: here 600 of one step,
    whose mean is known to sigma / sqrt(200) at each batch size."""
    sigma, cost = 0.3, Cost(0.5, 0.01)
    policy = calibration_rounds(batch_sizes=(16, 32, 64), local_steps=(1,), repeats=200)
    found = fitted(machine(cost, noise=sigma), policy).machine.workers[0].cost
    for size in (16, 32, 64):
        ratio = seconds(found, 1, size) / seconds(cost, 1, size)
        assert ratio == pytest.approx(1.0, abs=4 * sigma / math.sqrt(200))


def test_the_fitted_machine_keeps_the_script():
    """A worker that is slow for a while keeps its cost: those rounds do not count."""
    true = machine(Cost(0.1, 0.01), Cost(0.2, 0.01))
    script = (ScriptedFault(40.0, "slow", "w0", 3.0), ScriptedFault(90.0, "slow", "w0"))
    found = fitted(dataclasses.replace(true, faults=script)).machine
    assert found.faults == script
    assert_same_costs(found, true)


def test_learners_of_a_device_still_share_it():
    """Only their contention determines how slow they are together."""
    workers = profiles(Cost(0.1, 0.01), Cost(0.1, 0.01), contention=1.5)
    workers = tuple(
        dataclasses.replace(w, device="gpu:0", curve=(1.0, 2.0)) for w in workers
    )
    true = Machine("m", workers, LINKS)
    found = fitted(true).machine
    assert [w.device for w in found.workers] == ["gpu:0", "gpu:0"]
    assert [w.curve for w in found.workers] == [(1.0, 2.0)] * 2
    assert_same_costs(found, true)
    assert [w.contention for w in found.workers] == pytest.approx([1.5, 1.5])


def test_latency_before_rounds_is_fitted_apart_from_merges():
    """Rounds that begin with a delay, as over a network, which is not the link's."""
    plain = machine(Cost(1.0, 0.01), Cost(1.0, 0.01))
    latencies = (0.25, 0.5)
    late = dataclasses.replace(
        plain,
        workers=tuple(
            dataclasses.replace(w, latency=seconds)
            for w, seconds in zip(plain.workers, latencies, strict=True)
        ),
    )
    _, trace = recorded(rounds(batch_size=8), late, count=40)
    for line in trace.lines:
        if "dispatch" in line:  # a real clock writes when a worker was told
            line["start"] -= latencies[line["dispatch"]]
    found = fit_machine(trace).machine
    assert [w.latency for w in found.workers] == pytest.approx(latencies)
    before = fitted(plain, rounds(batch_size=8), count=40).machine
    assert found.links[""].latency == pytest.approx(before.links[""].latency)
    assert event_times(late, rounds(batch_size=8))[:30] == pytest.approx(
        event_times(found, rounds(batch_size=8))[:30]
    )


def test_traces_of_both_versions_give_the_same_machine():
    """A trace without the fields and lines that version 2 lacks."""
    m = machine(Cost(1.0, 0.01), Cost(1.5, 0.02), noise=0.1)
    _, trace = recorded(rounds(batch_size=8, local_steps=2), m, count=40)
    new = {"blocking", "transfers", "server_steps"}
    old = [{k: v for k, v in x.items() if k not in new} for x in trace.lines]
    found = fit_machine(Trace({**trace.header, "trace": 2}, old))
    lines = []
    for line in trace.lines:  # evaluations and starts, where they may come
        lines += [{"start": 0}, line] if "merge" in line else [line]
        lines += [{"evaluation": 1.0}] if "merge" in line or "merged" in line else []
    assert {"blocking", "evaluation"} < {name for line in lines for name in line}
    assert fit_machine(Trace(trace.header, lines)) == found
