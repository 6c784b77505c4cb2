"""Policies without a machine: workers, a table of arrivals, and a random little clock.

`follow` feeds arrivals in a given order and writes down what was ordered; `drive` gives
every work a random duration, and refuses what no policy may order.
"""

import heapq
from typing import NamedTuple

from hetjax.machine import Alarm, Arrival, Evaluated, Merged, WorkerInfo
from hetjax.schedule import ROOT, Orders


def infos(*seconds):
    """Workers whose step of one example takes so many seconds."""
    return tuple(
        WorkerInfo(k, f"w{k}", "gpu", (), fixed=s / 2, per_example=s / 2)
        for k, s in enumerate(seconds)
    )


def written(orders):
    """Orders as text: "merge 012" and "2:4x8", worker 2 does 4 steps of 8 examples."""
    merges = ["merge " + "".join(map(str, m.members)) for m in orders.merges]
    works = [f"{k}:{w.steps}x{w.batch_size:g}" for k, w in orders.dispatch]
    return " ".join(merges + works)


def follow(policy, workers, arrivals, num_examples=1000):
    """What is ordered at the start, and then at each arrival: a list of texts."""
    state, orders = policy.init(workers, num_examples)
    table, works = [written(orders)], dict(orders.dispatch)
    for time, worker in enumerate(arrivals, start=1):
        event = Arrival(worker, works.pop(worker), 0.0, float(time))
        state, orders = policy.react(state, event)
        works.update(orders.dispatch)
        table.append(written(orders))
    return table


class Entry(NamedTuple):
    """An arrival (None: the start), what it led to, and who had work afterwards."""

    arrival: Arrival | None
    orders: Orders
    busy: frozenset[int]


def drive(policy, workers, durations, num_arrivals):
    """The entries of a run; the i-th work takes the i-th of `durations`, in a cycle.

    Other events are thrown in before each arrival: they must change nothing.
    """
    state, orders = policy.init(workers, 1000)
    clock, given = [], {}
    entries = []
    arrival, now = None, 0.0
    while True:
        check_members_rest(orders, given)
        for worker, work in orders.dispatch:
            assert worker not in given, f"worker {worker} has work already"
            duration = durations[(len(entries) + worker) % len(durations)]
            given[worker] = Arrival(worker, work, now, now + duration)
            heapq.heappush(clock, (now + duration, worker))
        entries.append(Entry(arrival, orders, frozenset(given)))
        if len(entries) > num_arrivals:
            return entries
        assert clock, "nobody works, and nobody ever will: a deadlock"
        check_other_events_are_ignored(policy, state, now)
        now, worker = heapq.heappop(clock)
        arrival = given.pop(worker)
        state, orders = policy.react(state, arrival)


def check_members_rest(orders, given):
    for merge in orders.merges:
        assert not set(merge.members) & set(given), "a member of a merge is at work"


def check_other_events_are_ignored(policy, state, now):
    for event in (Merged(ROOT, now), Evaluated({"loss": 1.0}, now), Alarm("a", now)):
        assert policy.react(state, event) == (state, Orders())
