"""Adaptive SGD's scheduler on the virtual clock alone: updates and batch sizes."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import hetjax as hj
from hetjax.machine import Arrival, SimulatedClock


class MegaBatch(NamedTuple):
    """The work of each worker in one mega-batch."""

    updates: tuple[int, ...]
    sizes: tuple[float, ...]  # [examples] of the last batch


def first_mega_batches(
    policy: hj.schedule.Policy,
    clock: SimulatedClock,
    count: int,
    *,
    batch_size: float,
    nonzeros: float,
) -> list[MegaBatch]:
    """The first `count` mega-batches of a policy whose sizes start at `batch_size`."""
    return list(itertools.islice(_simulate(policy, clock, batch_size, nonzeros), count))


def _simulate(
    policy: hj.schedule.Policy,
    clock: SimulatedClock,
    batch_size: float,
    nonzeros: float,
) -> Iterator[MegaBatch]:
    n = len(clock.workers)
    updates, sizes = [0] * n, [float(batch_size)] * n
    # the number of examples only matters to a warm-up, which is counted in epochs
    events = hj.decisions(policy, clock, num_examples=10_000, nonzeros=nonzeros)
    for event, actions in events:
        if isinstance(event, Arrival):
            updates[event.worker] += 1
            sizes[event.worker] = event.local_round.batch_size
        if actions.merges:
            yield MegaBatch(tuple(updates), tuple(sizes))
            updates = [0] * n
