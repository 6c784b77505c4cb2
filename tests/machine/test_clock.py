"""The virtual clock: durations, links that are queues, order of events, noise."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import (
    Cost,
    Drift,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Merged,
    Profile,
    SimulatedClock,
    Timer,
    preset,
)

# A merge costs 2 * 1 s of latency; each member adds 2 * 10 s per 100 B.
LINK = Link(latency=1.0, bandwidth=10.0, topology="central")


def clock(factors=(1.0,), places=None, *, seed=0, noise=0.0, drift=None, **changes):
    """A clock of workers that need factor * (1 + 0.5 b + 0.25 nz) seconds per step."""
    places = places or ((),) * len(factors)
    cost = Cost(fixed=1.0, per_example=0.5, per_nonzero=0.25)
    workers = tuple(
        Profile(f"w{index}", "gpu", cost, factor=factor, place=place, drift=drift)
        for index, (factor, place) in enumerate(zip(factors, places, strict=True))
    )
    links = {"/".join(place): LINK for place in places} | {"": LINK}
    machine = Machine("m", workers, links, noise=noise, seed=changes.pop("of", 0))
    return SimulatedClock(machine, seed=seed, **changes)


def merge(c, node, members, num_bytes, blocking=True):
    return c.merge(MergeAction(members, node, blocking=blocking), num_bytes)


def drain(c):
    """All pending events."""
    return list(iter(c.next, None))


# Durations


def test_a_round_takes_the_sum_of_its_steps():
    c = clock((1.0, 2.0))
    local_round = LocalRound(local_steps=2, batch_size=4.2)  # dispatched as 4
    # 1 + 2 + 0.25 * 8 = 5 and 1 + 2 + 0 = 3, times the factor
    assert c.dispatch(1, local_round, (8, 0)) == (1, local_round, 0.0, 16.0)
    assert c.dispatch(0, local_round, (8, 0)) == (0, local_round, 0.0, 8.0)
    assert [event.worker for event in drain(c)] == [0, 1]
    assert c.now == 16.0
    assert c.dispatch(0, local_round, (0, 0)).start == 16.0


def test_no_steps_take_no_time():
    c = clock()
    arrival = c.dispatch(0, LocalRound(0, 64.0), ())
    assert (arrival.start, arrival.finish) == (0.0, 0.0)
    assert c.next() == arrival


def test_drift_is_evaluated_when_each_step_starts():
    # a period of 16 s: 1 + 0.5 sin is 1 at 0 s and 1.5 at 4 s
    c = clock(drift=Drift(amplitude=0.5, period=16.0))
    local_round = LocalRound(2, 6.0)  # 4 s per step
    assert c.dispatch(0, local_round, (0, 0)).finish == pytest.approx(4.0 + 6.0)


def test_workers_know_the_mean_non_zeros():
    (info,) = clock(nonzeros_per_example=4.0).workers
    assert (info.fixed, info.per_example) == (1.0, 0.5 + 4 * 0.25)


# Links


def test_a_link_is_a_queue():
    c = clock((1.0, 1.0))
    assert merge(c, "a", (0,), 100) == (0.0, 22.0)
    assert merge(c, "b", (1,), 100) == (22.0, 44.0)
    assert drain(c) == [Merged("a", 22.0, (0,)), Merged("b", 44.0, (1,))]


def test_links_do_not_wait_for_each_other():
    c = clock((1.0, 1.0, 1.0), (("x",), ("y",), ("y",)))
    assert merge(c, "a", (0,), 100) == (0.0, 22.0)
    assert merge(c, "b", (1,), 50) == (0.0, 12.0)
    assert merge(c, "c", (2,), 50) == (12.0, 24.0)
    assert [event.node for event in drain(c)] == ["b", "a", "c"]


def test_a_node_does_one_merge_at_a_time_even_on_two_links():
    c = clock((1.0, 1.0), (("x",), ("y",)))
    assert merge(c, "a", (0,), 100) == (0.0, 22.0)
    assert merge(c, "a", (1,), 100) == (22.0, 44.0)


def test_a_merge_waits_for_its_members_merge_below():
    c = clock((1.0, 1.0, 1.0), (("x",), ("x",), ("y",)))
    assert merge(c, "x", (0, 1), 100) == (0.0, 42.0)
    # The root's link is free, but worker 0 is busy until 42 s.
    assert merge(c, "root", (0, 2), 100) == (42.0, 84.0)


def test_a_free_link_starts_at_once_later():
    c = clock((1.0, 1.0))
    merge(c, "a", (0,), 100)
    c.set_timer("later", 30.0)
    drain(c)
    assert merge(c, "a", (1,), 100) == (30.0, 52.0)


@pytest.mark.parametrize(
    # the second merge on the link runs from 22 s to 44 s
    ("blocking", "start"),
    [(True, 44.0), (False, 22.0)],
)
def test_members_wait_only_for_a_blocking_merge(blocking, start):
    c = clock((1.0, 1.0))
    merge(c, "a", (0,), 100)
    merge(c, "b", (1,), 100, blocking=blocking)
    assert c.dispatch(1, LocalRound(1, 2.0), (0,)) == (
        1,
        LocalRound(1, 2.0),
        start,
        start + 2.0,
    )


# Order of events


def test_ties_merged_then_arrivals_then_timers():
    c = clock((1.0, 1.0, 1.0, 1.0), ((), (), ("x",), ("y",)))
    c.set_timer("z", 22.0)
    c.set_timer("a", 22.0)
    for worker in (1, 0):
        c.dispatch(worker, LocalRound(1, 42.0), (0,))  # 1 + 21 = 22 s
    merge(c, "y", (3,), 100)
    merge(c, "x", (2,), 100)
    merged_y, merged_x, first, second, *timers = drain(c)
    assert (merged_y, merged_x) == (Merged("y", 22.0, (3,)), Merged("x", 22.0, (2,)))
    assert (first.worker, second.worker) == (0, 1)
    assert timers == [Timer("z", 22.0), Timer("a", 22.0)]


def test_a_timer_at_the_current_time_is_allowed():
    c = clock()
    c.set_timer("start", 0.0)
    assert c.next() == Timer("start", 0.0)
    assert c.next() is None
    assert c.now == 0.0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 5),
    actions=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30),
)
def test_time_never_runs_back_and_clocks_agree(seed, actions):
    def run():
        c, events = clock((1.0, 1.5, 2.0, 0.5), noise=0.5, seed=seed), []
        for kind, worker in actions:
            at_rest = worker not in c._events.roster.working
            if kind == 0 and at_rest:
                c.dispatch(worker, LocalRound(2, 8.0), (1, 2))
            elif kind == 1 and at_rest:
                merge(c, "root", (worker,), 10, blocking=bool(len(events) % 2))
            elif kind == 2:
                c.set_timer("x", c.now + worker)
            else:
                events.append((c.next(), c.now))
        return events + [(event, c.now) for event in iter(c.next, None)]

    events = run()
    times = [now for _, now in events]
    assert times == sorted(times)
    assert all(event.time == now for event, now in events if event is not None)
    assert run() == events


# Noise


def durations(c, worker, count):
    """Seconds of `count` consecutive rounds of one step."""
    result = []
    for _ in range(count):
        arrival = c.dispatch(worker, LocalRound(1, 2.0), (0,))
        result.append(arrival.finish - arrival.start)
        while c.next() != arrival:
            pass
    return result


def test_noise_of_a_worker_is_independent_of_the_others():
    alone = clock((1.0, 1.0), noise=0.5)
    crowded = clock((1.0, 1.0), noise=0.5)
    expected = durations(alone, 0, 5)
    crowded.dispatch(1, LocalRound(7, 3.0), (0,) * 7)
    # The start of each round differs between the two only by rounding.
    np.testing.assert_allclose(durations(crowded, 0, 5), expected, rtol=1e-12)
    workers = clock((1.0, 1.0), noise=0.5)
    assert durations(workers, 0, 1) != durations(workers, 1, 1)


@pytest.mark.parametrize("seeds", [{"seed": 1}, {"of": 1}])
def test_both_seeds_count(seeds):
    assert durations(clock(noise=0.5, **seeds), 0, 3) != durations(
        clock(noise=0.5), 0, 3
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noise_has_mean_one_and_its_sigma(seed):
    sigma, count = 0.5, 4000
    c = clock(noise=sigma, seed=seed)
    factors = np.array(durations(c, 0, count)) / 2.0
    # The mean's standard error is sqrt(exp(s^2) - 1) / sqrt(n) = 0.0084; without the
    # term - s^2 / 2 the mean would be 1.133. The log's deviation has s / sqrt(2 n).
    error = math.sqrt(math.expm1(sigma**2) / count)
    assert factors.mean() == pytest.approx(1.0, abs=4 * error)
    spread = 4 * sigma / math.sqrt(2 * count)
    assert np.log(factors).std() == pytest.approx(sigma, abs=spread)


def test_every_step_has_its_own_noise():
    (one,) = durations(clock(noise=0.5), 0, 1)
    ten = clock(noise=0.5).dispatch(0, LocalRound(10, 2.0), (0,) * 10).finish
    single_steps = durations(clock(noise=0.5), 0, 10)
    assert ten == pytest.approx(sum(single_steps))
    assert ten != pytest.approx(10 * one)


def test_a_pickled_clock_goes_on_bit_for_bit():
    c = clock((1.0, 1.5), noise=0.5)
    c.dispatch(0, LocalRound(3, 4.0), (1, 2, 3))
    merge(c, "a", (1,), 100)
    c.set_timer("x", 5.0)
    copy = pickle.loads(pickle.dumps(c))
    assert drain(copy) == drain(c)
    local_round = LocalRound(3, 4.0), (1, 2, 3)
    assert copy.dispatch(1, *local_round) == c.dispatch(1, *local_round)


def test_a_thousand_workers():
    """The heap returns all events in order of time."""
    c = SimulatedClock(preset("uniform:1000"), seed=0)
    arrivals = [c.dispatch(k, LocalRound(1, 256.0), (0,)) for k in range(1000)]
    assert drain(c) == sorted(arrivals, key=lambda arrival: arrival.finish)


# Refusals


def with_a_round_in_flight():
    c = clock((1.0, 1.0))
    c.dispatch(1, LocalRound(1, 2.0), (0,))
    return c


@pytest.mark.parametrize(
    ("message", "act"),
    [
        (
            r"worker 1 \(w1\) has a local round",
            lambda c: c.dispatch(1, LocalRound(1, 2.0), (0,)),
        ),
        (r"worker 1 \(w1\) has a local round", lambda c: merge(c, "root", (0, 1), 8)),
        (
            "no worker 2; they are 0 to 1",
            lambda c: c.dispatch(2, LocalRound(1, 2.0), (0,)),
        ),
        ("no worker -1", lambda c: c.dispatch(-1, LocalRound(1, 2.0), (0,))),
        ("no worker -1", lambda c: merge(c, "root", (-1,), 8)),
        ("names a member twice", lambda c: merge(c, "root", (0, 0), 8)),
        ("at least one member", lambda c: merge(c, "root", (), 8)),
        ("2 steps needs 2 numbers", lambda c: c.dispatch(0, LocalRound(2, 2.0), (0,))),
        ("-1 steps needs -1 numbers", lambda c: c.dispatch(0, LocalRound(-1, 2.0), ())),
        (
            "cannot have -3 non-zeros",
            lambda c: c.dispatch(0, LocalRound(1, 2.0), (-3,)),
        ),
        ("float NaN", lambda c: c.dispatch(0, LocalRound(1, math.nan), (0,))),
        ("timer 'x' at -1.0 s, but it is 0.0 s", lambda c: c.set_timer("x", -1.0)),
        ("timer 'x' at nan", lambda c: c.set_timer("x", math.nan)),
        ("timer 'x' at inf", lambda c: c.set_timer("x", math.inf)),
    ],
)
def test_refusals_change_nothing(message, act):
    c, untouched = with_a_round_in_flight(), with_a_round_in_flight()
    with pytest.raises(ValueError, match=message):
        act(c)
    for either in (c, untouched):
        merge(either, "root", (0,), 8)
    assert drain(c) == drain(untouched)


def test_an_arrived_worker_may_be_dispatched_again():
    c = with_a_round_in_flight()
    c.next()
    assert c.dispatch(1, LocalRound(1, 2.0), (0,)).start == 2.0


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match="seed=.*: pass a whole number"):
        clock(seed=seed)
