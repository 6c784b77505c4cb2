"""How many workers a device should have: CROSSBOW's tuner (host world)."""

from typing import Any, NamedTuple

from hetjax.machine.types import ROOT, Arrival, Event, Join, Leave, WorkerInfo
from hetjax.schedule.types import Orders, Policy

TUNERS = ("stop_at_first_drop", "paper")
Numbers = dict[str, float]  # by device


class LearnersState(NamedTuple):
    """The inner policy's state, and the tuner's measurements."""

    inner: Any
    device_of: tuple[str, ...]  # of every worker
    working: tuple[int, ...]  # workers that are there
    absent: frozenset[int]  # that cannot be started: not there yet, or lost
    before: Numbers  # [examples/s] in the last window
    examples: Numbers  # in this one
    began: float  # [s] when this one began
    merges: int  # in this one; -1: a change is still to take effect
    tuning: bool


def tuned_learners(
    inner: Policy,
    *,
    rule: str = "stop_at_first_drop",
    window: int = 10,
    threshold: float = 0.1,
) -> Policy:
    """Adds workers to devices while their throughput grows.

    After every `window` merges of the root it compares each device's throughput t
    [examples/s] with that of the window before, t' (0 at first):

        rule="paper"                 t - t' > threshold t':     one worker more
                                     t < t' and workers > 1:    one less; for ever on
        rule="stop_at_first_drop"    all devices together: one more on each of them
                                     while the sum of t grows by more than threshold,
                                     else one less, and that is it

    The second is the public code's. The threshold is relative (the paper's absolute one
    is in no unit). A change counts from the next round on, and the next window begins
    with it. `inner` begins with the workers it likes, and lets others join and leave:
    `rounds(..., first=one_per_device)`. Source: CROSSBOW 3.4, Algorithm 2; ALGORITHMS
    C.5.
    """
    if rule not in TUNERS:
        raise ValueError(f"rule={rule!r}: choose one of {TUNERS}")
    if not window >= 1:
        raise ValueError(f"window={window}: give a whole number of at least 1")
    if not threshold >= 0:
        raise ValueError(f"threshold={threshold}: give a number of at least 0")

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[LearnersState, Orders]:
        inner_state, orders = inner.init(infos, num_examples)
        working = tuple(k for k, _ in orders.dispatch)
        absent = frozenset(i.index for i in infos if not i.present)
        rest = tuple(i.index for i in infos if i.index not in working and i.present)
        device_of = tuple(info.device or info.name for info in infos)
        zeros = dict.fromkeys(device_of, 0.0)
        state = LearnersState(
            inner_state, device_of, working, absent, zeros, zeros, 0.0, -1, tuning=True
        )
        return state, orders._replace(stop=rest)

    def react(state: LearnersState, event: Event) -> tuple[LearnersState, Orders]:
        inner_state, orders = inner.react(state.inner, event)
        state = state._replace(inner=inner_state)
        if isinstance(event, Arrival):
            state = _counted(state, event)
        if isinstance(event, Join | Leave):
            state = _with_staff(state, event)
        if not state.tuning or not any(m.node == ROOT for m in orders.merges):
            return state, orders
        state = state._replace(merges=state.merges + 1)
        if state.merges == 0:  # the round in which the change took effect is over
            return _new_window(state, state.before, event.time), orders
        if state.merges < window:
            return state, orders
        seconds = event.time - state.began
        now = {device: n / seconds for device, n in state.examples.items()}
        changes = decide(state, now)
        state = _new_window(state, now, event.time)
        start, stop, tuning = _staff(state, changes)
        if start or stop:
            staff = (set(state.working) | set(start)) - set(stop)
            state = state._replace(working=tuple(sorted(staff)), merges=-1)
        state = state._replace(tuning=tuning)
        return state, orders._replace(start=start, stop=stop)

    def decide(state: LearnersState, now: Numbers) -> dict[str, int]:
        """+1, 0 or -1 for every device."""
        if rule == "paper":
            return {d: _paper(t, state.before[d], threshold) for d, t in now.items()}
        before = sum(state.before.values())
        grows = sum(now.values()) - before > threshold * before
        return dict.fromkeys(now, 1 if grows else -1)

    def _staff(
        state: LearnersState, changes: dict[str, int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        """Who starts, who stops, and whether the tuning goes on."""
        start, stop = [], []
        for device, change in changes.items():
            mine = [k for k, d in enumerate(state.device_of) if d == device]
            here = [k for k in mine if k in state.working]
            spare = [k for k in mine if k not in {*state.working, *state.absent}]
            if change > 0:
                start += spare[:1]
            if change < 0 and len(here) > 1:
                stop += here[-1:]
        # without a spare worker the rule has found its best at the machine's limit
        done = rule == "stop_at_first_drop" and not start
        return tuple(start), tuple(stop), not done

    return Policy(init, react)


def _with_staff(state: LearnersState, event: Join | Leave) -> LearnersState:
    """Also of workers that come and go on their own account."""
    k = event.worker
    working, absent = set(state.working) - {k}, state.absent - {k}
    if isinstance(event, Join):
        working.add(k)
    elif event.lost:
        absent = absent | {k}
    return state._replace(working=tuple(sorted(working)), absent=absent)


def _paper(t: float, before: float, threshold: float) -> int:
    if t - before > threshold * before:
        return 1
    # equal windows differ by rounding: that is no fall
    return -1 if t < before * (1 - 1e-9) else 0


def _counted(state: LearnersState, event: Arrival) -> LearnersState:
    device = state.device_of[event.worker]
    examples = state.examples[device] + event.work.examples
    return state._replace(examples={**state.examples, device: examples})


def _new_window(state: LearnersState, before: Numbers, time: float) -> LearnersState:
    zeros = dict.fromkeys(state.examples, 0.0)
    return state._replace(before=before, examples=zeros, began=time, merges=0)
