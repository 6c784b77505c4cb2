"""The policy of a calibration: local rounds of each kind, alone and together (host)."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hetjax.arguments import Count, checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Leave,
    LocalRound,
    MergeAction,
    RunEnded,
)
from hetjax.schedule.policies.rounds import merge_all
from hetjax.schedule.types import Actions, Policy

DONE = "everything was measured"


class Probe(NamedTuple):
    """A round of a calibration: all its members do the same local round."""

    members: tuple[int, ...]
    local_round: LocalRound
    once: bool = False  # whether a member waits after its arrival, or repeats the round


class CalibrationState(NamedTuple):
    """The remaining probes, and the members that have not arrived yet."""

    roster: Roster
    probes: tuple[Probe, ...]  # the current one comes first
    pending: frozenset[int]  # members of the current probe that have not arrived
    names: tuple[str, ...]  # of all workers


@checked
def calibration_rounds(
    *,
    batch_sizes: Sequence[Count],
    local_steps: Sequence[Count] = (1, 8),
    repeats: Count = 5,
) -> Policy:
    """Rounds of every batch size and number of steps, to measure their durations.

    Each round is done first by each worker alone, then by all at once, with a merge
    after each; the whole sequence is repeated `repeats` times. While all compute at
    once, the faster workers repeat their local round until the slowest has arrived, so
    that no worker ever computes alone. Then each does its local round once more and
    waits, as in a synchronous round, since cores that were idle start more slowly. The
    run ends (RunEnded) with the last round.
    """
    for name, values in (("batch_sizes", batch_sizes), ("local_steps", local_steps)):
        if not values:
            raise ValueError(f"{name}={values}: pass at least one number")
    largest = max(batch_sizes)

    def init(infos, num_examples):
        workers = tuple(i.index for i in infos)
        sets = [((k,), True) for k in workers]
        if len(infos) > 1:
            sets += [(workers, False), (workers, True)]
        probes = tuple(
            Probe(members, LocalRound(k, size, size / largest), once)
            for _ in range(repeats)
            for size, k in itertools.product(batch_sizes, local_steps)
            for members, once in sets
        )
        names = tuple(i.name for i in infos)
        return begin_probe(
            CalibrationState(Roster.of(infos), (), frozenset(), names), probes
        )

    def react(state, event):
        if isinstance(event, Leave) and event.lost:
            raise ValueError(
                f"calibration: worker {state.names[event.worker]} was lost: {event.why}"
            )
        state = state._replace(roster=state.roster.after(event))
        if not isinstance(event, Arrival):
            return state, Actions()
        k, probe = event.worker, state.probes[0]
        state = state._replace(pending=state.pending - {k})
        if state.pending and not probe.once:
            state = state._replace(roster=state.roster.dispatched((k,)))
            return state, Actions(dispatch=((k, probe.local_round),))
        if state.roster.working:
            return state, Actions()
        return begin_probe(state, state.probes[1:], (merge_all(probe.members),))

    return Policy(init, react)


def begin_probe(
    state: CalibrationState,
    probes: tuple[Probe, ...],
    merges: tuple[MergeAction, ...] = (),
) -> tuple[CalibrationState, Actions]:
    """Begin the first of these probes, after the merges of the previous one."""
    if not probes:
        raise RunEnded(DONE)
    members, local_round, _ = probes[0]
    state = state._replace(
        roster=state.roster.dispatched(members),
        probes=probes,
        pending=frozenset(members),
    )
    return state, Actions(merges, tuple((k, local_round) for k in members))
