"""CROSSBOW's tuner, which chooses the number of workers per device (host world)."""

from typing import Any, NamedTuple

from hetjax.arguments import checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import ROOT, Arrival, Event, Leave, WorkerInfo
from hetjax.schedule.types import Actions, Policy

TUNERS = ("stop_at_first_drop", "paper")
Throughputs = dict[str, float]  # [examples/s] by device


class TunedWorkersState(NamedTuple):
    """The inner policy's state, and the tuner's measurements."""

    inner: Any
    roster: Roster  # as it will be once all starts and stops have taken effect
    device_of: tuple[str, ...]  # of every worker
    before: Throughputs  # in the last window
    examples: dict[str, float]  # by device, in this window
    began: float  # [s] when this window began
    merges: int  # in this window; -1: a change has not taken effect yet
    tuning: bool


@checked
def tuned_workers(
    inner: Policy,
    *,
    rule: str = "stop_at_first_drop",
    window: int = 10,
    threshold: float = 0.1,
    absolute: bool = False,
) -> Policy:
    """Adds workers to devices as long as their throughput grows.

    After every `window` merges of the root it compares each device's throughput t
    [examples/s] with t', that of the window before (0 at first):

        rule="paper"                 per device, in every window:
                                     t - t' > tau:              one worker more
                                     t < t' and workers > 1:    one worker fewer
        rule="stop_at_first_drop"    all devices together: one worker more on each
                                     while the sum of t grows by more than tau; else
                                     one fewer on each, and the tuning ends

    The second rule is that of the public code. tau is `threshold` times t' as in that
    code or, with `absolute`, `threshold` itself [examples/s] as in the paper. A change
    takes effect with the next round, and so does the next window. `inner` must begin
    with a choice of workers and let others join and leave:
    `rounds(..., first=one_per_device)`. A worker that is lost is replaced by a spare
    worker of its device, if there is one. The paper calls workers learners. Source:
    CROSSBOW 3.4, Algorithm 2; docs/algorithms C.5.
    """
    if rule not in TUNERS:
        raise ValueError(f"rule={rule!r}: choose one of {TUNERS}")
    if window < 1:
        raise ValueError(f"window={window}: pass a whole number of at least 1")
    if threshold < 0:
        raise ValueError(f"threshold={threshold}: pass a number of at least 0")

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[TunedWorkersState, Actions]:
        inner_state, actions = inner.init(infos, num_examples)
        chosen = frozenset(k for k, _ in actions.dispatch)
        roster = Roster.of(infos)
        device_of = tuple(info.device or info.name for info in infos)
        zeros = dict.fromkeys(device_of, 0.0)
        state = TunedWorkersState(
            inner=inner_state,
            roster=roster._replace(active=chosen),
            device_of=device_of,
            before=zeros,
            examples=zeros,
            began=0.0,
            merges=-1,
            tuning=True,
        )
        return state, actions._replace(stop=tuple(sorted(roster.active - chosen)))

    def react(
        state: TunedWorkersState, event: Event
    ) -> tuple[TunedWorkersState, Actions]:
        inner_state, actions = inner.react(state.inner, event)
        state, spare = _replace_lost(state._replace(inner=inner_state), event)
        actions = actions._replace(start=spare)
        if isinstance(event, Arrival):
            state = _count(state, event)
        if not state.tuning or not any(m.node == ROOT for m in actions.merges):
            return state, actions
        state = state._replace(merges=state.merges + 1)
        if state.merges == 0:  # the round in which the change took effect is over
            return _begin_window(state, state.before, event.time), actions
        if state.merges < window:
            return state, actions
        state, start, stop = tune(state, event.time)
        return state, actions._replace(start=spare + start, stop=stop)

    def tune(
        state: TunedWorkersState, time: float
    ) -> tuple[TunedWorkersState, tuple[int, ...], tuple[int, ...]]:
        """Choose the workers to start and to stop at the end of a window."""
        seconds = time - state.began
        now = {device: n / seconds for device, n in state.examples.items()}
        start, stop = _choose_workers(state, decide(state, now))
        state = _begin_window(state, now, time)
        if start or stop:
            active = (state.roster.active | set(start)) - set(stop)
            state = _with_active(state, active)._replace(merges=-1)
        # without a spare worker the tuning ends at the machine's limit
        done = rule == "stop_at_first_drop" and not start
        return state._replace(tuning=not done), start, stop

    def decide(state: TunedWorkersState, now: Throughputs) -> dict[str, int]:
        """Return the change in workers of every device: +1, 0 or -1."""
        if rule == "paper":
            return {d: compare(t, state.before[d]) for d, t in now.items()}
        grows = compare(sum(now.values()), sum(state.before.values())) > 0
        return dict.fromkeys(now, 1 if grows else -1)

    def compare(t: float, before: float) -> int:
        if t - before > (threshold if absolute else threshold * before):
            return 1
        # equal windows may differ by rounding, which is no drop
        return -1 if t < before * (1 - 1e-9) else 0

    return Policy(init, react, inner.topology)


def _replace_lost(
    state: TunedWorkersState, event: Event
) -> tuple[TunedWorkersState, tuple[int, ...]]:
    """The roster after an event, and the worker to start in place of a lost one."""
    before, state = state, state._replace(roster=state.roster.after(event))
    if not (isinstance(event, Leave) and event.lost):
        return state, ()
    if event.worker not in before.roster.active:
        return state, ()
    _, spare = _workers_of(state, state.device_of[event.worker])
    return _with_active(state, state.roster.active | set(spare[:1])), spare[:1]


def _choose_workers(
    state: TunedWorkersState, changes: dict[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The workers to start and to stop, for these changes per device."""
    start, stop = (), ()
    for device, change in changes.items():
        active, spare = _workers_of(state, device)
        if change > 0:
            start += spare[:1]
        if change < 0 and len(active) > 1:
            stop += active[-1:]
    return start, stop


def _workers_of(
    state: TunedWorkersState, device: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A device's active workers, and those that could be started."""
    active, _, lost = state.roster
    mine = [k for k, d in enumerate(state.device_of) if d == device]
    return (
        tuple(k for k in mine if k in active),
        tuple(k for k in mine if k not in active and k not in lost),
    )


def _with_active(state: TunedWorkersState, active: frozenset[int]) -> TunedWorkersState:
    return state._replace(roster=state.roster._replace(active=active))


def _count(state: TunedWorkersState, event: Arrival) -> TunedWorkersState:
    device = state.device_of[event.worker]
    examples = state.examples[device] + event.local_round.examples
    return state._replace(examples={**state.examples, device: examples})


def _begin_window(
    state: TunedWorkersState, before: Throughputs, time: float
) -> TunedWorkersState:
    zeros = dict.fromkeys(state.examples, 0.0)
    return state._replace(before=before, examples=zeros, began=time, merges=0)
