"""Adaptive SGD's scheduler on the clock alone: updates and sizes, mega-batch by one."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import hetjax as hj
from hetjax.machine import Arrival, SimulatedClock


class MegaBatch(NamedTuple):
    """What every worker did in it."""

    updates: tuple[int, ...]
    sizes: tuple[float, ...]  # [examples] of the last batch


def played(
    policy: hj.schedule.Policy,
    clock: SimulatedClock,
    count: int,
    *,
    b_max: float,
    nonzeros: float,
) -> list[MegaBatch]:
    """The first `count` mega-batches of a policy that begins with sizes of `b_max`."""
    return list(itertools.islice(_played(policy, clock, b_max, nonzeros), count))


def _played(
    policy: hj.schedule.Policy, clock: SimulatedClock, b_max: float, nonzeros: float
) -> Iterator[MegaBatch]:
    n = len(clock.workers)
    updates, sizes = [0] * n, [float(b_max)] * n
    # how many examples there are matters to a warm-up of whole epochs only
    events = hj.schedule.play(policy, clock, num_examples=10_000, nonzeros=nonzeros)
    for event, orders in events:
        if isinstance(event, Arrival):
            updates[event.worker] += 1
            sizes[event.worker] = event.work.batch_size
        if orders.merges:
            yield MegaBatch(tuple(updates), tuple(sizes))
            updates = [0] * n
