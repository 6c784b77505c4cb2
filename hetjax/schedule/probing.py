"""The policy of a calibration: every kind of work, alone and side by side (host)."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from hetjax.machine.types import (
    Arrival,
    Event,
    Leave,
    RunEnded,
    Work,
    WorkerInfo,
)
from hetjax.schedule.rounds import everybody
from hetjax.schedule.types import Orders, Policy

DONE = "everything was measured"
LONGEST = 64  # steps of a work


class Probe(NamedTuple):
    """A round of a calibration."""

    members: tuple[int, ...]
    works: tuple[Work, ...]  # of each member


class ProbingState(NamedTuple):
    """What is still to come, and who works."""

    probes: tuple[Probe, ...]
    members: tuple[int, ...]
    working: frozenset[int]


def probing(
    *, batch_sizes: Sequence[int], steps: Sequence[int] = (1, 8), repeats: int = 5
) -> Policy:
    """Rounds of every batch size and number of steps, of each worker and of all.

    `repeats` times in turn: each worker alone, then all at once, all followed by a
    merge. Side by side they do as many steps as take them about equally long, up to
    LONGEST.
    The run ends (RunEnded) with the last round.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ValueError(f"batch_sizes={tuple(batch_sizes)}: give positive numbers")
    largest = max(batch_sizes)

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[ProbingState, Orders]:
        del num_examples
        probes = []
        for _ in range(repeats):
            for size, k in itertools.product(batch_sizes, steps):
                work = Work(k, size, size / largest)
                probes += [Probe((i.index,), (work,)) for i in infos]
                if len(infos) > 1:
                    slowest = max(i.seconds(size) for i in infos)
                    probes.append(_side_by_side(infos, work, slowest))
        return _next(ProbingState(tuple(probes), (), frozenset()))

    def react(state: ProbingState, event: Event) -> tuple[ProbingState, Orders]:
        if isinstance(event, Leave) and event.lost:
            raise ValueError(
                f"calibration: worker {event.worker} was lost: {event.why}"
            )
        if not isinstance(event, Arrival):
            return state, Orders()
        working = state.working - {event.worker}
        state = state._replace(working=working)
        return _next(state) if not working else (state, Orders())

    return Policy(init, react)


def _side_by_side(infos: tuple[WorkerInfo, ...], work: Work, slowest: float) -> Probe:
    members = tuple(i.index for i in infos)
    works = []
    for info in infos:
        ratio = max(1.0, slowest / info.seconds(work.size))
        k = work.steps * 2 ** round(math.log2(ratio))  # few shapes: each is a program
        works.append(work._replace(steps=min(k, max(LONGEST, work.steps))))
    return Probe(members, tuple(works))


def _next(state: ProbingState) -> tuple[ProbingState, Orders]:
    """Merge who worked, and begin the next round."""
    merges = (everybody(state.members),) if state.members else ()
    if not state.probes:
        raise RunEnded(DONE)
    probe, *rest = state.probes
    dispatch = tuple(zip(probe.members, probe.works, strict=True))
    state = ProbingState(tuple(rest), probe.members, frozenset(probe.members))
    return state, Orders(merges, dispatch)
