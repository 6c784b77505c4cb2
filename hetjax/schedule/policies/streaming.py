"""Synchronous rounds that merge fragments in turn: Streaming DiLoCo (host world)."""

from typing import NamedTuple

from hetjax.arguments import Count, Positive, Whole, checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    MergeOp,
)
from hetjax.schedule.types import Actions, Policy


class StreamingState(NamedTuple):
    """The members of the current piece of a round, and the steps that are done."""

    roster: Roster
    members: tuple[int, ...]  # of this piece
    step: int  # at which the piece began
    end: int  # the step at which it ends


@checked
def streaming(
    *,
    batch_size: Positive,
    local_steps: Count,
    fragments: Count,
    delay: Whole = 0,
) -> Policy:
    """All workers compute in step; every few steps one fragment of the model merges.

    With H `local_steps`, P `fragments` and V the `delay` [steps]:

        d = max(1, round(H / P))
        step t, if d divides t:      fragment p = (t/d - 1) mod P is pushed
        step t, if d divides t - V:  the fragment that was pushed V steps ago is fetched

    Rounds are cut into pieces that end at these steps. A fragment is whole, so each
    merges every P d steps, and V must be below that. With a delay nobody waits for a
    transfer; without one, workers wait for the push and the fetch together. The merge
    decides how much of the fetched fragment a worker takes. Parts are named "0" to
    "P-1". Workers leave and join between pieces. Source: Streaming DiLoCo
    (arXiv:2501.18512); docs/algorithms L.10.
    """
    every = max(1, round(local_steps / fragments))
    if delay >= fragments * every:
        raise ValueError(
            f"streaming: delay={delay}, but each fragment merges every "
            f"{fragments * every} steps: pass a delay below that"
        )

    def init(infos, num_examples):
        if not infos:
            raise ValueError("streaming: there are no workers")
        return begin_piece(StreamingState(Roster.of(infos), (), 0, 0), ())

    def react(state, event):
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Arrival():
                return end_piece_if_done(state)
            case Join() if not state.members:
                return end_piece_if_done(state)
            case Leave(worker=k, lost=True) if k in state.members:
                members = tuple(m for m in state.members if m != k)
                return end_piece_if_done(state._replace(members=members))
        return state, Actions()

    def end_piece_if_done(state):
        if state.roster.working:
            return state, Actions()
        if not state.members:  # all of them were lost: the piece begins again
            return begin_piece(state, ())
        return begin_piece(state._replace(step=state.end), merges_of(state))

    def merges_of(state):
        """The fetch and the push of the step at which the piece ends."""
        members, t = state.members, state.end
        one = 1 if len(members) > 1 else 0  # a worker alone needs no transfer
        if not delay:
            return (MergeAction(members, transfers=2 * one, part=fragment(t)),)
        merge = MergeAction(members, blocking=False, transfers=one)
        merges = ()
        if is_push(t - delay):
            merges += (merge._replace(op=MergeOp.FETCH, part=fragment(t - delay)),)
        if is_push(t):
            merges += (merge._replace(op=MergeOp.PUSH, part=fragment(t)),)
        return merges

    def is_push(t):
        return t >= every and t % every == 0

    def fragment(t):
        return str((t // every - 1) % fragments)

    def begin_piece(state, merges):
        """Dispatch the steps until the next push or fetch."""
        t = state.step
        steps = every - t % every
        if t >= delay:
            steps = min(steps, every - (t - delay) % every)
        members = tuple(sorted(state.roster.active))
        state = StreamingState(state.roster.dispatched(members), members, t, t + steps)
        local_round = LocalRound(steps, batch_size)
        return state, Actions(merges, tuple((k, local_round) for k in members))

    return Policy(init, react, bulk_synchronous=True)
