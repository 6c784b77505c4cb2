"""A syncer that asks for one fragment after another: Decoupled DiLoCo (host world)."""

from typing import NamedTuple

from hetjax.arguments import Count, NotNegative, Positive, checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    ROOT,
    Arrival,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    MergeOp,
    Timer,
)
from hetjax.schedule.policies.given_versions import fetch
from hetjax.schedule.policies.grace_periods import (
    GracePeriod,
    MeasuredSeconds,
    grace_seconds,
)
from hetjax.schedule.types import Actions, Policy, with_entry


class Learner(NamedTuple):
    """What a worker did, and when it last received each fragment."""

    steps: int  # done
    tokens: int  # [examples] of those steps
    received: tuple[int, ...]  # the version of each fragment that it has
    steps_then: tuple[int, ...]  # done when it received that
    tokens_then: tuple[int, ...]

    def with_received(self, p: int, version: int) -> "Learner":
        """The learner after it received fragment p."""
        return self._replace(
            received=with_entry(self.received, p, version),
            steps_then=with_entry(self.steps_then, p, self.steps),
            tokens_then=with_entry(self.tokens_then, p, self.tokens),
        )


class SyncerState(NamedTuple):
    """The learners, and the syncer's present request."""

    roster: Roster
    learners: tuple[Learner, ...]
    versions: tuple[int, ...]  # of each fragment
    request: int  # 0, 1, ...: it asks for fragment `request` mod P
    answered: frozenset[int]  # workers that answered it
    is_open: bool  # False while the answers are merged
    is_ending: bool  # the quorum is reached, and the grace period has begun
    since: float  # [s] when the request was opened; when its merge began
    measured: MeasuredSeconds


@checked
def syncer(
    *,
    batch_size: Positive,
    local_steps: Count,
    fragments: Count = 1,
    quorum: Count = 1,
    grace: NotNegative | GracePeriod = 0.0,
) -> Policy:
    """Learners never wait; a syncer merges the fragments that it has got in time.

    Request j = 0, 1, ... is for fragment p = j mod P. At the end of each round of
    max(1, round(H / P)) steps, a learner answers the open request once, with the weight

        T^2 / n       n steps and T examples since it last received p

    and then takes the fragments that were merged since its last round (also at its own
    answer, if that was the last one). When K learners have answered, the syncer waits
    for `grace` seconds (see `adaptive_grace`), or until all active ones have; it merges
    the answers, and opens the next request once that is done. Answers that come later
    count for the next requests. H is `local_steps`, P the `fragments`, K the `quorum`;
    if fewer than K workers are active, all must answer. Parts are named "0" to "P-1".
    Source: Decoupled DiLoCo (arXiv:2604.21428); docs/algorithms L.9. When learners take
    fragments is our reading of it.
    """
    steps = max(1, round(local_steps / fragments))
    share = grace.share if isinstance(grace, GracePeriod) else 1.0

    def init(infos, num_examples):
        if not infos:
            raise ValueError("syncer: there are no workers")
        if quorum > len(infos):
            raise ValueError(
                f"syncer: quorum={quorum}, but there are {len(infos)} workers: pass at "
                "most that number"
            )
        none = (0,) * fragments
        state = SyncerState(
            roster=Roster.of(infos),
            learners=(Learner(0, 0, none, none, none),) * len(infos),
            versions=none,
            request=0,
            answered=frozenset(),
            is_open=True,
            is_ending=False,
            since=0.0,
            measured=MeasuredSeconds(),
        )
        return begin(state, sorted(state.roster.active), Actions())

    def react(state, event):
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Arrival():
                return report(state, event)
            case Join(worker=k) if k not in state.roster.working:
                return begin(receive_all(state, k), (k,), Actions())
            case Leave():  # perhaps all others have answered
                return end_if_enough(state, event.time, Actions())
            case Timer(name=name) if state.is_open and name == timer_name(state):
                return end(state, event.time, Actions())
            case Merged(node=node, op=op) if node == ROOT and op == MergeOp.APPLY:
                return open_next(state, event.time), Actions()
        return state, Actions()

    def report(state, event):
        """A learner answers the open request, takes what is new, and goes on."""
        k = event.worker
        seconds = event.finish - event.start
        state = count(state, k, event.local_round)
        state = state._replace(measured=state.measured.with_new(share, overlap=seconds))
        merges = ()
        if state.is_open and k not in state.answered:
            merges = (answer(state, k),)
            state = state._replace(answered=state.answered | {k})
        state, actions = end_if_enough(state, event.time, Actions(merges))
        if k in state.roster.active:
            state, taken = take_new(state, k)
            actions = actions._replace(merges=(*actions.merges, *taken))
        return begin(state, (k,), actions)

    def count(state, k, local_round):
        learner = state.learners[k]
        learner = learner._replace(
            steps=learner.steps + local_round.local_steps,
            tokens=learner.tokens + local_round.examples,
        )
        return state._replace(learners=with_entry(state.learners, k, learner))

    def answer(state, k):
        learner, p = state.learners[k], state.request % fragments
        n = learner.steps - learner.steps_then[p]
        total = learner.tokens - learner.tokens_then[p]
        return MergeAction(
            (k,),
            op=MergeOp.ACCUMULATE,
            blocking=False,
            transfers=1,
            part=str(p),
            weight=total**2 / n,
        )

    def take_new(state, k):
        """The fetches of the fragments that were merged since the last report."""
        learner = state.learners[k]
        new = [p for p in range(fragments) if learner.received[p] < state.versions[p]]
        for p in new:
            learner = learner.with_received(p, state.versions[p])
        state = state._replace(learners=with_entry(state.learners, k, learner))
        return state, tuple(fetch((k,), str(p))._replace(blocking=False) for p in new)

    def receive_all(state, k):
        """A worker that joins begins with the present model."""
        learner = state.learners[k]
        now = (learner.steps,) * fragments, (learner.tokens,) * fragments
        learner = Learner(learner.steps, learner.tokens, state.versions, *now)
        return state._replace(learners=with_entry(state.learners, k, learner))

    def end_if_enough(state, time, actions):
        """End the request if all have answered; begin the grace period at a quorum."""
        if not state.is_open or not state.answered:
            return state, actions
        if state.roster.active <= state.answered:
            state = reached(state, time)
            return end(state, time, actions)
        if state.is_ending or len(state.answered) < quorum:
            return state, actions
        state = reached(state, time)
        until = time + grace_seconds(grace, state.measured)
        return state, actions._replace(timers=((timer_name(state), until),))

    def reached(state, time):
        """Note how long the quorum took."""
        if state.is_ending:
            return state
        measured = state.measured.with_new(share, quorum=time - state.since)
        return state._replace(is_ending=True, measured=measured)

    def end(state, time, actions):
        p = state.request % fragments
        merge = MergeAction((), op=MergeOp.APPLY, transfers=0, part=str(p))
        versions = with_entry(state.versions, p, state.versions[p] + 1)
        state = state._replace(is_open=False, since=time, versions=versions)
        return state, actions._replace(merges=(*actions.merges, merge))

    def open_next(state, time):
        merging = time - state.since
        return state._replace(
            request=state.request + 1,
            answered=frozenset(),
            is_open=True,
            is_ending=False,
            since=time,
            measured=state.measured.with_new(share, merging=merging),
        )

    def begin(state, workers, actions):
        active = tuple(k for k in workers if k in state.roster.active)
        state = state._replace(roster=state.roster.dispatched(active))
        dispatch = tuple((k, LocalRound(steps, batch_size)) for k in active)
        return state, actions._replace(dispatch=dispatch)

    return Policy(init, react)


def timer_name(state: SyncerState) -> str:
    """The name of the timer at the end of the present request's grace period."""
    return f"grace {state.request}"
