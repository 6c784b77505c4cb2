"""The policy of a calibration: every kind of work, alone and side by side (host)."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hetjax.machine.types import (
    Arrival,
    Event,
    Leave,
    MergeOrder,
    RunEnded,
    Work,
    WorkerInfo,
)
from hetjax.schedule.rounds import everybody
from hetjax.schedule.types import Orders, Policy

DONE = "everything was measured"


class Probe(NamedTuple):
    """A round of a calibration: the same work for all its members."""

    members: tuple[int, ...]
    work: Work
    ends: bool = False  # does a member rest once it has arrived?


class ProbingState(NamedTuple):
    """What is still to come, and who works."""

    probes: tuple[Probe, ...]  # this one first
    owing: frozenset[int]  # members that have not arrived in this one
    working: frozenset[int]
    names: tuple[str, ...]  # of all workers


def probing(
    *, batch_sizes: Sequence[int], steps: Sequence[int] = (1, 8), repeats: int = 5
) -> Policy:
    """Rounds of every batch size and number of steps, of each worker and of all.

    `repeats` times in turn: each worker alone, then all at once, all followed by a
    merge. Side by side the faster ones begin again until the slowest has arrived, so
    that nobody computes alone; and once more each does one work and waits, as in a
    synchronous round: cores that were idle are slower to begin. The run ends (RunEnded)
    with the last round.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ValueError(f"batch_sizes={tuple(batch_sizes)}: give positive numbers")
    if not steps or min(steps) < 1:
        raise ValueError(f"steps={tuple(steps)}: give positive numbers")
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: give at least 1")
    largest = max(batch_sizes)

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[ProbingState, Orders]:
        del num_examples
        everybody_here = tuple(i.index for i in infos)
        sets = [((k,), True) for k in everybody_here]
        if len(infos) > 1:
            sets += [(everybody_here, False), (everybody_here, True)]
        probes = tuple(
            Probe(members, Work(k, size, size / largest), ends)
            for _ in range(repeats)
            for size, k in itertools.product(batch_sizes, steps)
            for members, ends in sets
        )
        return _begun(probes, (), tuple(i.name for i in infos))

    def react(state: ProbingState, event: Event) -> tuple[ProbingState, Orders]:
        if isinstance(event, Leave) and event.lost:
            raise ValueError(
                f"calibration: worker {state.names[event.worker]} was lost: {event.why}"
            )
        if not isinstance(event, Arrival):
            return state, Orders()
        probe, owing = state.probes[0], state.owing - {event.worker}
        state = state._replace(owing=owing)
        if owing and not probe.ends:
            return state, Orders(dispatch=((event.worker, probe.work),))
        working = state.working - {event.worker}
        if working:
            return state._replace(working=working), Orders()
        return _begun(state.probes[1:], (everybody(probe.members),), state.names)

    return Policy(init, react)


def _begun(
    probes: tuple[Probe, ...], merges: tuple[MergeOrder, ...], names: tuple[str, ...]
) -> tuple[ProbingState, Orders]:
    """The next round, behind the merge of the last one."""
    if not probes:
        raise RunEnded(DONE)
    members, work, _ = probes[0]
    state = ProbingState(probes, frozenset(members), frozenset(members), names)
    return state, Orders(merges, tuple((k, work) for k in members))
