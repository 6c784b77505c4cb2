"""Dynamic dispatch within mega-batches: the scheduler of Adaptive SGD (host world)."""

from typing import Any, NamedTuple

from hetjax.arguments import checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import Arrival, Event, Join, Leave, LocalRound, WorkerInfo
from hetjax.schedule.batch_scaling import Scaling, ScalingRule, as_scaling
from hetjax.schedule.policies.rounds import merge_all
from hetjax.schedule.types import Actions, Policy

RULES = ("dispatched", "hgpu_code")


class MegaBatchState(NamedTuple):
    """The tuples `sizes` and `updates` have one entry per worker."""

    roster: Roster
    sizes: tuple[float, ...]  # [examples] real-valued
    updates: tuple[int, ...]  # dispatched in this mega-batch
    dispatched: int  # [examples] in this mega-batch
    completed: int  # [examples] of those that were dispatched
    merges: int
    warming: float  # [examples] of the warm-up that are not dispatched yet
    scaling: Any  # state of the scaling rule


@checked
def mega_batch(
    *,
    examples: int,
    batch_size: float,
    scaling: ScalingRule | Scaling | None = None,
    scale_every: int = 1,
    rule: str = "dispatched",
    warmup_epochs: float = 0.0,
    warmup_size: float = 32.0,
) -> Policy:
    """Dispatches batches to idle workers until the mega-batch is spent; then all merge.

    A batch is dispatched while fewer than `examples` have been dispatched; the last one
    is not shortened. A worker that finds the mega-batch spent waits. When no worker is
    computing any more, all merge, `scaling` chooses the next batch sizes (every
    `scale_every` merges; with None they stay), and the next mega-batch begins. Batch
    sizes start at `batch_size`, the largest (b_max in the paper), and the relative
    learning rates are b_i / b_max. `rule="hgpu_code"` is the rule of the paper's public
    code: a batch is dispatched while the number of *completed* examples, less the
    largest batch size, is below `examples`. For the first `warmup_epochs` passes over
    the data all batch sizes are `warmup_size`. A worker that joins gets the next batch,
    of the size that it had last, or b_max; batches that are lost with a worker are not
    dispatched again. Source: Adaptive SGD III; docs/algorithms A.1, A.4, A.5.
    """
    given = {"examples": examples, "batch_size": batch_size, "scale_every": scale_every}
    given["warmup_size"] = warmup_size
    for name, value in given.items():
        if not value > 0:  # no worker would ever get a batch
            raise ValueError(f"mega_batch: {name}={value}: pass a number above 0")
    if rule not in RULES:
        raise ValueError(f"rule={rule!r}: choose one of {RULES}")
    if not warmup_epochs >= 0:
        raise ValueError(f"warmup_epochs={warmup_epochs}: pass a number of at least 0")
    scaler = as_scaling(scaling) if scaling else None

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[MegaBatchState, Actions]:
        if not infos:
            raise ValueError("mega_batch: there are no workers")
        n = len(infos)
        warming = warmup_epochs * num_examples
        size = min(warmup_size, batch_size) if warming else batch_size
        state = MegaBatchState(
            roster=Roster.of(infos),
            sizes=(float(size),) * n,
            updates=(0,) * n,
            dispatched=0,
            completed=0,
            merges=0,
            warming=warming,
            scaling=scaler.init(n) if scaler else (),
        )
        return dispatch_to_all(state)

    def react(state: MegaBatchState, event: Event) -> tuple[MegaBatchState, Actions]:
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Arrival():
                return dispatch_or_merge(count(state, event), event.worker)
            case Join():
                return dispatch_or_merge(state, event.worker)
            case Leave(worker=k, lost=True):  # its unmerged updates are lost as well
                updates = (*state.updates[:k], 0, *state.updates[k + 1 :])
                return merge_if_spent(state._replace(updates=updates))
            case Leave():
                return merge_if_spent(state)
        return state, Actions()

    def dispatch_or_merge(
        state: MegaBatchState, worker: int
    ) -> tuple[MegaBatchState, Actions]:
        """Dispatch a batch to the worker if any is left, else merge if all are done."""
        roster = state.roster
        if worker in roster.active - roster.working and is_unspent(state):
            state, given = dispatch(state, worker)
            return state, Actions(dispatch=(given,))
        return merge_if_spent(state)

    def merge_if_spent(state: MegaBatchState) -> tuple[MegaBatchState, Actions]:
        """Merge and begin the next mega-batch once this one is spent and done."""
        if state.roster.working or is_unspent(state):
            return state, Actions()
        did = {k for k, updates in enumerate(state.updates) if updates}
        members = tuple(sorted(state.roster.active | did))
        state, actions = dispatch_to_all(begin_mega_batch(state))
        return state, actions._replace(merges=(merge_all(members),) if did else ())

    def count(state: MegaBatchState, event: Arrival) -> MegaBatchState:
        completed = state.completed + event.local_round.examples
        state = state._replace(completed=completed)
        if not scaler:
            return state
        seconds = event.finish - event.start
        seen = scaler.observe(state.scaling, event.worker, event.local_round, seconds)
        return state._replace(scaling=seen)

    def is_unspent(state: MegaBatchState) -> bool:
        if rule == "hgpu_code":
            done = state.completed  # the maximum is only computed near the end
            return done < examples or done - max(state.sizes) < examples
        return state.dispatched < examples

    def begin_mega_batch(state: MegaBatchState) -> MegaBatchState:
        merges, sizes, n = state.merges + 1, state.sizes, len(state.sizes)
        warming = max(0.0, state.warming - state.dispatched)
        if state.warming and not warming:
            sizes = (float(batch_size),) * n
        elif scaler and not state.warming and merges % scale_every == 0:
            here = tuple(sorted(state.roster.active))
            sizes = scaler.scale(state.scaling, sizes, state.updates, here)
        return state._replace(
            sizes=sizes,
            updates=(0,) * n,
            dispatched=0,
            completed=0,
            merges=merges,
            warming=warming,
        )

    def dispatch_to_all(state: MegaBatchState) -> tuple[MegaBatchState, Actions]:
        dispatched = []
        for worker in sorted(state.roster.active):
            if is_unspent(state):
                state, given = dispatch(state, worker)
                dispatched.append(given)
        return state, Actions(dispatch=tuple(dispatched))

    def dispatch(
        state: MegaBatchState, worker: int
    ) -> tuple[MegaBatchState, tuple[int, LocalRound]]:
        size = state.sizes[worker]
        local_round = LocalRound(1, size, size / batch_size)
        updates = list(state.updates)
        updates[worker] += 1
        state = state._replace(
            roster=state.roster.dispatched((worker,)),
            updates=tuple(updates),
            dispatched=state.dispatched + local_round.examples,
        )
        return state, (worker, local_round)

    return Policy(init, react)
