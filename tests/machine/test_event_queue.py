"""The event queue with long scripts: the same order as with all faults in its heap."""

import copy
import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import Arrival, LocalRound, Merged, ScriptedFault
from hetjax.machine.event_queue import EventQueue
from hetjax.machine.types import WorkerInfo

WORKERS = tuple(WorkerInfo(k, f"w{k}", "gpu", (), 0.5, 0.5) for k in range(3))
LAWS = settings(max_examples=80, deadline=None, derandomize=True)
TIMES = st.integers(0, 4).map(float)  # few, so that many events are simultaneous


class AllInHeap(EventQueue):
    """The oracle: a queue whose heap has all faults from the start."""

    def __init__(self, workers, faults):
        super().__init__(workers)
        entries = [(f.seconds, 1, tie, f) for tie, f in enumerate(faults)]
        self._heap = list(entries)
        heapq.heapify(self._heap)
        self._count = len(entries)
        self._scripted_joins = sum(f.what == "join" for f in faults)


FAULTS = st.lists(
    st.builds(
        ScriptedFault,
        TIMES,
        st.sampled_from(("kill", "slow", "join")),
        st.sampled_from([w.name for w in WORKERS]),
    ),
    max_size=8,
)
WHAT = ("merged", "arrival", "timer", "begin", "start", "stop", "pop", "pop", "pop")
ACTIONS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 2), TIMES))


def act(queue, what, worker, time, skips):
    """Do something; return what a clock sees of it."""
    arrival = Arrival(worker, LocalRound(1, 8), time, time)
    if what == "merged":
        queue.push(time, Merged("root", time, (worker,)))
    elif what == "arrival":
        queue.push(time, arrival)
    elif what == "begin":
        queue.push_begin(arrival)
    elif what == "timer":
        queue.set_timer(f"t{worker}", time)
    elif what == "start" and worker not in queue.roster.active | queue.roster.lost:
        queue.start(worker, time)
    elif what == "stop" and worker in queue.roster.active:
        queue.stop(worker, time)
    elif what == "pop" and queue.next_time < float("inf"):
        when, event, begins = queue.pop()
        if isinstance(event, ScriptedFault) and skips:
            queue.skip(event)
        elif isinstance(event, ScriptedFault):
            event = queue.apply_fault(event, when)
        return when, event, begins
    return None


def seen(queue):
    return (
        queue.next_time,
        queue.next_is_timer,
        queue.has_scripted_joins,
        queue.has_join,
        queue.roster,
    )


@LAWS
@given(faults=FAULTS, actions=ACTIONS, skips=st.booleans(), saved=st.integers(0, 9))
def test_events_come_as_if_all_faults_were_in_the_heap(faults, actions, skips, saved):
    """Also when the queue is saved on the way, and loaded by a new one."""
    queue, oracle = EventQueue(WORKERS, faults), AllInHeap(WORKERS, faults)
    actions += [("pop", 0, 0.0)] * (len(faults) + len(actions))
    for number, (what, worker, time) in enumerate(actions):
        if number == saved:
            state, queue = copy.deepcopy(queue.save()), EventQueue(WORKERS, faults)
            queue.load(state)
        assert seen(queue) == seen(oracle)
        mine = act(queue, what, worker, time, skips)
        assert mine == act(oracle, what, worker, time, skips)
    assert not queue.has_scripted_joins
    assert seen(queue) == seen(oracle)


def test_a_long_script_is_not_in_the_heap():
    """Neither is it saved: an event costs the same as without a script."""
    script = [ScriptedFault(float(t), "slow", "w0", 2.0) for t in range(5000)]
    queue = EventQueue(WORKERS, script[::-1])
    assert queue.next_time == 0.0
    for time in range(100):
        assert len(queue._heap) == len(queue.save()["_heap"]) == 1
        assert queue.pop()[:2] == (time, script[time])
    assert len(queue.save_without_arrivals()["_heap"]) == 1
