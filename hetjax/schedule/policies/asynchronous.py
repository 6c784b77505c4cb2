"""Asynchronous policies: a worker merges alone and continues at once (host world)."""

from collections.abc import Sequence

from hetjax.arguments import (
    Count,
    NotNegative,
    Positive,
    Whole,
    checked,
    per_worker,
)
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    MergeOp,
    Timer,
)
from hetjax.schedule.batch_scaling import ScalingRule, among
from hetjax.schedule.policies.asynchronous_parts import (
    AsynchronousState,
    Partners,
    rescaled_rate,
    split_in_half,
)
from hetjax.schedule.step_counts import StepCounts, StepRule, as_step_counts
from hetjax.schedule.types import Actions, Policy, with_entry


@checked
def asynchronous(
    *,
    batch_size: Positive | Sequence[Positive],
    local_steps: Count | Sequence[Count] | StepRule | StepCounts = 1,
    transfers: Whole = 2,
    max_staleness: Whole | None = None,
    refetch: bool = True,
    partners: Partners | None = None,
    scaling: ScalingRule | None = None,
    window: Count | None = None,
    grace: NotNegative | None = None,
    buffer: Count | None = None,
    rescaled: bool = False,
) -> Policy:
    """Each worker merges alone and begins its next `local_steps` without waiting.

    `transfers=0` means shared memory, where a merge needs no link. A worker that is
    more than `max_staleness` local rounds ahead of the slowest one waits for it (stale
    synchronous parallel). With `refetch` it only pushes before it waits, and fetches
    when it continues; without `refetch` it merges as usual, for merges in which workers
    keep their own models. `partners(worker, merges, workers)` chooses the partners of
    each merge. With `scaling`, that rule sets the batch sizes after every `window`
    examples, and the relative learning rates are b_i / b. The round count of a worker
    that joins starts at that of the slowest one, if its own is lower.

    `local_steps` are one number, one per worker, or a rule: see `dynamic_local_updates`
    and `measured_local_updates`. With `grace` [s] a worker only pushes when it arrives,
    and waits: the first to arrive begins a grace period, and at its end, or as soon as
    all active workers wait, all of them fetch and continue. An arrival at the very end
    is in time. With a `buffer` of K the pushes of K arrivals change the model together,
    at the K-th; each worker takes the present model and continues at once (FedBuff).
    With `rescaled` worker i's learning rate is multiplied by t_i (sum_j 1/t_j) / k,
    with t_i the expected seconds of its step and k the number of active workers
    (Rescaled ASGD; the constant is ours). Sources: docs/algorithms F.3, F.5, G.2, G.6,
    L.2, L.3, L.5, L.6.
    """
    steps = as_step_counts(local_steps)
    if scaling and not window:
        raise ValueError(
            f"asynchronous: window={window}: pass the number of examples per scaling"
        )
    if max_staleness is not None and refetch and (partners or transfers % 2):
        raise ValueError(
            "asynchronous: a worker that waits pushes first and fetches later, which "
            f"splits transfers={transfers} in half and allows no partners: pass "
            "refetch=False"
        )
    apart = {
        "grace": grace,
        "buffer": buffer,
        "max_staleness": max_staleness,
        "partners": partners,
    }
    given = [name for name, value in apart.items() if value is not None]
    if len(given) > 1 and {"grace", "buffer"} & set(given):
        raise ValueError(f"asynchronous: pass {' or '.join(given)}, not both")
    if grace is not None and transfers % 2:
        raise ValueError(
            "asynchronous: a grace period splits a merge into a push and a fetch, but "
            f"transfers={transfers}: pass 0 or 2"
        )

    def init(infos, num_examples):
        n = len(infos)
        if not n:
            raise ValueError("asynchronous: there are no workers")
        state = AsynchronousState(
            roster=Roster.of(infos),
            sizes=tuple(map(float, per_worker("batch_size", batch_size, n))),
            local_rounds=(0,) * n,
            updates=(0,) * n,
            examples=0,
            held=(),
            merges=0,
            infos=infos,
            steps=steps.init(infos),
            buffered=0,
            grace_periods=0,
        )
        return dispatch_to(state, sorted(state.roster.active))

    def react(state, event):
        if isinstance(event, Arrival):
            return handle_arrival(state, event)
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Join():
                return handle_join(state, event.worker)
            case Leave():  # other workers may have waited for it
                waiting = tuple(w for w in state.held if w != event.worker)
                return release(state, waiting, None)
            case Timer(name=name) if state.held and name == timer_name(state):
                return end_grace(state, state.held, ())
        return state, Actions()

    def handle_arrival(state, event):
        k = event.worker
        merge = MergeAction((k,), partners=choose(state, k), transfers=transfers)
        state = count(state, event)
        if buffer:
            state, op = into_buffer(state)
            merge = merge._replace(op=op)
        waiting = (*state.held, k) if k in state.roster.active else state.held
        if grace is not None:
            return wait(state, waiting, merge, event.time)
        return release(state, waiting, merge)

    def into_buffer(state):
        """The operation of an arrival, which applies the buffer if it is full."""
        op = MergeOp.ACCUMULATE | MergeOp.FETCH
        n = state.buffered + 1
        if n == buffer:
            return state._replace(buffered=0), op | MergeOp.APPLY
        return state._replace(buffered=n), op

    def wait(state, waiting, merge, time):
        """Push; the worker waits for the end of the grace period, or begins one."""
        push = (merge._replace(op=MergeOp.PUSH, transfers=transfers // 2),)
        if state.roster.active <= set(waiting):
            return end_grace(state, waiting, push)
        begins = waiting and not state.held
        number = state.grace_periods + bool(begins)
        state = state._replace(held=waiting, grace_periods=number)
        timers = ((timer_name(state), time + (grace or 0.0)),) if begins else ()
        return state, Actions(push, timers=timers)

    def end_grace(state, waiting, merges):
        """The workers that waited take the model and continue."""
        if waiting:
            half = transfers // 2
            fetch = MergeAction(waiting, op=MergeOp.FETCH, transfers=half)
            merges = (*merges, fetch)
        return dispatch_to(state._replace(held=()), waiting, merges)

    def handle_join(state, k):
        done = state.local_rounds
        slowest = min((done[w] for w in state.roster.active if w != k), default=0)
        missing = max(0, slowest - done[k])
        state = state._replace(local_rounds=with_entry(done, k, done[k] + missing))
        # a worker that was stopped and still computes continues when it arrives
        return dispatch_to(state, () if k in state.roster.working else (k,))

    def choose(state, k):
        """The partners of worker k, chosen among the active workers."""
        if partners is None:
            return ()
        here = sorted(state.roster.active | {k})
        chosen = partners(here.index(k), state.merges, len(here))
        return tuple(here[i] for i in chosen)

    def release(state, waiting, merge):
        """Dispatch to waiting workers that may continue; `merge` is the arrival's."""
        merges = (merge,) if merge else ()
        if grace is not None:  # a worker has left
            if state.roster.active <= set(waiting):
                return end_grace(state, waiting, ())
            return state._replace(held=waiting), Actions()
        if max_staleness is None:
            return dispatch_to(state, waiting, merges)
        done, active = state.local_rounds, state.roster.active
        latest = min((done[k] for k in active), default=0) + max_staleness
        free = tuple(w for w in waiting if done[w] <= latest)
        held = tuple(w for w in waiting if done[w] > latest)
        if refetch:
            merges = split_in_half(merge, held, free, transfers // 2)
        return dispatch_to(state._replace(held=held), free, merges)

    def dispatch_to(state, workers, merges=()):
        """Dispatch the next local round of these workers, after the merges."""
        dispatch = tuple((k, next_round(state, k)) for k in workers)
        state = state._replace(roster=state.roster.dispatched(workers))
        return state, Actions(merges, dispatch)

    def next_round(state, worker):
        sizes, active = state.sizes, state.roster.active
        largest = batch_size if isinstance(batch_size, (int, float)) else max(sizes)
        rate = sizes[worker] / largest
        if rescaled:
            rate *= rescaled_rate(state, worker, active)
        number = steps.count(state.steps, worker, sorted(active))
        return LocalRound(number, sizes[worker], rate)

    def count(state, event):
        k, local_round, done = event.worker, event.local_round, state.local_rounds
        seconds = event.finish - event.start
        state = state._replace(
            steps=steps.observe(state.steps, k, local_round, seconds),
            roster=state.roster.after(event),
            local_rounds=with_entry(done, k, done[k] + 1),
            merges=state.merges + 1,
        )
        if not scaling:
            return state
        updates = state.updates[k] + local_round.local_steps
        updates = with_entry(state.updates, k, updates)
        examples = state.examples + local_round.examples
        if examples < (window or 0):
            return state._replace(updates=updates, examples=examples)
        sizes = among(scaling, state.sizes, updates, sorted(state.roster.active))
        return state._replace(sizes=sizes, updates=(0,) * len(updates), examples=0)

    return Policy(init, react)


def timer_name(state: AsynchronousState) -> str:
    """The name of the timer at the end of the present grace period."""
    return f"grace {state.grace_periods}"
