"""All policies, and when each may leave a worker idle.

A row's `may_idle(log, worker)` says whether a barrier makes the worker idle. It follows
from the dispatches and merges so far, without looking into states.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from quick import quick_if

from hetjax.machine import Arrival
from hetjax.schedule import (
    ROOT,
    MergeOp,
    Policy,
    adaptive_grace,
    asynchronous,
    bounded_delay,
    collected,
    downpour,
    dynamic_local_updates,
    equal_time,
    fastest,
    fixed_scaling,
    hierarchical,
    linear_scaling,
    magma_async,
    measured_local_updates,
    measured_scaling,
    mega_batch,
    on_rate_drop,
    one_per_device,
    random_partner,
    ringleader,
    rounds,
    sma_restarts,
    streaming,
    syncer,
    tuned_workers,
)

B_MIN, B_MAX, MEGA, STALE, EVERY = 8.0, 64.0, 320, 1, 2
NUM_WORKERS = 6


class Log:
    """The events and actions so far."""

    def __init__(self, infos):
        self.infos = infos
        self.busy: set[int] = set()
        self.local_rounds = Counter()  # done, by worker
        self.rounds_since = Counter()  # done since the root's last merge, by worker
        self.dispatched = Counter()  # examples since its last merge, by node
        self.completed = 0  # examples since the root's last merge
        self.merges = Counter()  # by node, since the last one of nodes at the root
        self.membership = {info.index for info in infos}
        self.taking_part: set[int] | None = None  # active workers when the round began

    def add(self, event, actions):
        if isinstance(event, Arrival):
            self.busy.remove(event.worker)
            self.local_rounds[event.worker] += 1
            self.rounds_since[event.worker] += 1
            self.completed += event.local_round.examples
        assert self.busy.issuperset(actions.cancel)
        self.busy -= set(actions.cancel)
        for merge in actions.merges:
            if MergeOp.PUSH in merge.op:
                self._add_merge(merge)
        for worker, local_round in actions.dispatch:
            assert worker not in self.busy
            self.busy.add(worker)
            self.dispatched[ROOT] += local_round.examples
            self.dispatched[node_of(worker)] += local_round.examples
        self.membership = (self.membership | set(actions.start)) - set(actions.stop)
        if self.taking_part is None:
            self.taking_part = set(self.busy)

    def _add_merge(self, merge):
        self.dispatched[merge.node] = 0
        self.merges[merge.node] += 1
        if merge.node == ROOT:
            self.rounds_since.clear()
            self.completed = 0
            self.taking_part = set(self.membership)
            if isinstance(merge.members[0], str):
                self.merges.clear()


def node_of(worker):
    """The group of a worker: in the table groups are 2, 2 and 2 workers."""
    return f"group{worker // 2}"


def never(log, worker):
    return False


def round_done(log, worker):
    """It did its part, or has none in this round, while another worker is busy."""
    done = log.rounds_since[worker] == 1 or worker not in log.taking_part
    return done and bool(log.busy)


def too_far_ahead(log, worker):
    return (
        log.local_rounds[worker]
        > min(log.local_rounds[k] for k in range(NUM_WORKERS)) + STALE
    )


def mega_batch_spent(log, worker):
    return log.dispatched[ROOT] >= MEGA and bool(log.busy)


def mega_batch_completed(log, worker):
    return log.completed >= MEGA + B_MIN and bool(log.busy)


def group_busy(log, worker):
    """Rounds in a group: the group's other worker is busy, or its rounds are done."""
    return node_full(log, worker) or (worker ^ 1) in log.busy


def node_full(log, worker):
    return log.merges[node_of(worker)] >= EVERY and bool(log.busy)


def group_spent(log, worker):
    spent = log.dispatched[node_of(worker)] >= MEGA
    return node_full(log, worker) or (spent and (worker ^ 1) in log.busy)


def above_busy(log, worker):
    """Deeper trees, grace periods and fragments: some worker is busy."""
    return bool(log.busy)


def master(log, worker):
    slowest = max(log.infos, key=lambda w: (w.seconds(B_MAX), -w.index))
    return worker == slowest.index


def not_chosen(log, worker):
    return worker not in fastest(B_MAX)(log.infos)


class Row(NamedTuple):
    policy: Policy
    may_idle: Callable[[Log, int], bool]


LINEAR = partial(linear_scaling, min_batch_size=B_MIN, batch_size=B_MAX, beta=4.0)
CLIPPED = partial(LINEAR, bound="clip")
FIXED = partial(fixed_scaling, min_batch_size=B_MIN, batch_size=B_MAX, step=8)
MEASURED = measured_scaling(min_batch_size=B_MIN, batch_size=B_MAX, examples=MEGA)
ROUNDS = rounds(batch_size=B_MAX)
FREE = partial(asynchronous, batch_size=B_MAX)
MEGA_BATCH = partial(mega_batch, examples=MEGA, batch_size=B_MAX)
IN_GROUPS = partial(hierarchical, sizes=2, every=EVERY)


def ignoring(policy):
    return partial(policy, batch_size=B_MAX, stop="ignore")


TABLE = {
    "rounds": Row(ROUNDS, round_done),
    "rounds_unlike": Row(
        rounds(local_steps=(1, 2, 3, 1, 2, 3), batch_size=(8, 16, 64, 8, 16, 64)),
        round_done,
    ),
    "rounds_overlapping": Row(rounds(batch_size=B_MAX, blocking=False), round_done),
    "equal_time": Row(
        rounds(local_steps=equal_time(8, B_MAX), batch_size=B_MAX), round_done
    ),
    "fastest": Row(rounds(batch_size=B_MAX, workers=fastest(B_MAX)), not_chosen),
    "sma_restarts": Row(
        sma_restarts(ROUNDS, on_rate_drop(lambda e: 0.5 ** (e // 1000))), round_done
    ),
    "tuned_workers": Row(
        tuned_workers(rounds(batch_size=B_MAX, first=one_per_device), window=2),
        round_done,
    ),
    "tuned_paper": Row(
        tuned_workers(
            rounds(batch_size=B_MAX, first=one_per_device), rule="paper", window=1
        ),
        round_done,
    ),
    "tuned_absolute": Row(
        tuned_workers(
            rounds(batch_size=B_MAX, first=one_per_device),
            rule="paper",
            window=1,
            threshold=5.0,
            absolute=True,
        ),
        round_done,
    ),
    "mega_batch": Row(MEGA_BATCH(), mega_batch_spent),
    "mega_batch_linear": Row(MEGA_BATCH(scaling=LINEAR), mega_batch_spent),
    "mega_batch_clipped": Row(
        MEGA_BATCH(scaling=CLIPPED, scale_every=2), mega_batch_spent
    ),
    "mega_batch_measured": Row(MEGA_BATCH(scaling=MEASURED), mega_batch_spent),
    "mega_batch_hgpu_code": Row(
        MEGA_BATCH(scaling=FIXED, rule="hgpu_code"), mega_batch_completed
    ),
    "mega_batch_warm": Row(
        MEGA_BATCH(scaling=FIXED, warmup_epochs=0.5), mega_batch_spent
    ),
    "asynchronous": Row(FREE(), never),
    "asynchronous_shared": Row(FREE(transfers=0, local_steps=3), never),
    "asynchronous_stale": Row(FREE(max_staleness=STALE), too_far_ahead),
    "asynchronous_gossip": Row(FREE(partners=random_partner()), never),
    "asynchronous_scaled": Row(FREE(scaling=LINEAR, window=1000), never),
    "downpour": Row(downpour(batch_size=B_MAX, push_every=2, fetch_every=3), never),
    "downpour_that_waits": Row(
        downpour(batch_size=B_MAX, push_every=2, fetch_every=3, blocking=True), never
    ),
    "downpour_eager": Row(downpour(batch_size=B_MAX), never),
    "magma_async": Row(magma_async(batch_size=B_MAX), master),
    "magma_async_swap": Row(magma_async(batch_size=B_MAX, subtract="swap"), master),
    "groups": Row(IN_GROUPS(ROUNDS), group_busy),
    "groups_without_broadcast": Row(IN_GROUPS(ROUNDS, broadcast=False), group_busy),
    "groups_of_mega_batches": Row(
        IN_GROUPS(MEGA_BATCH(scaling=LINEAR)),
        group_spent,
    ),
    "groups_of_asynchronous": Row(IN_GROUPS(FREE()), node_full),
    "groups_of_downpour": Row(IN_GROUPS(downpour(batch_size=B_MAX)), node_full),
    "groups_of_stale": Row(IN_GROUPS(FREE(max_staleness=0)), group_busy),
    "groups_by_place": Row(hierarchical(ROUNDS, every=3), above_busy),
    "groups_unequal": Row(
        hierarchical(ROUNDS, sizes=(1, 3, 2), every=EVERY), above_busy
    ),
    "groups_of_groups": Row(
        hierarchical(hierarchical(ROUNDS, sizes=1, every=2), sizes=(2, 4)),
        above_busy,
    ),
    "three_levels": Row(
        hierarchical(hierarchical(hierarchical(ROUNDS, sizes=1))), above_busy
    ),
    "sma_restarts_of_groups": Row(
        sma_restarts(IN_GROUPS(ROUNDS), on_rate_drop(lambda e: 0.5 ** (e // 1000))),
        group_busy,
    ),
    "asynchronous_grace": Row(FREE(grace=0.5), above_busy),
    "asynchronous_grace_of_ties": Row(FREE(grace=0.0, local_steps=2), above_busy),
    "asynchronous_buffered": Row(FREE(buffer=4), never),
    "asynchronous_dylu": Row(FREE(local_steps=dynamic_local_updates(5, B_MAX)), never),
    "asynchronous_measured": Row(FREE(local_steps=measured_local_updates(5)), never),
    "asynchronous_rescaled": Row(FREE(rescaled=True), never),
    "bounded_delay_ignoring": Row(ignoring(bounded_delay)(max_delay=4), never),
    "collected_ignoring": Row(ignoring(collected)(gradients=9), never),
    "streaming": Row(
        streaming(batch_size=B_MAX, local_steps=6, fragments=3, delay=1), above_busy
    ),
    "streaming_at_once": Row(
        streaming(batch_size=B_MAX, local_steps=3, fragments=2), above_busy
    ),
    "streaming_late": Row(
        streaming(batch_size=B_MAX, local_steps=2, fragments=4, delay=3), above_busy
    ),
    "groups_with_grace": Row(IN_GROUPS(FREE(grace=1.0)), group_busy),
    "groups_that_stream": Row(
        IN_GROUPS(streaming(batch_size=B_MAX, local_steps=2, fragments=2)), group_busy
    ),
    # policies that cancel rounds, or whose merges may have no members
    "bounded_delay": Row(bounded_delay(batch_size=B_MAX, max_delay=3), never),
    "bounded_delay_adaptive": Row(bounded_delay(batch_size=B_MAX), never),
    "collected": Row(collected(batch_size=B_MAX, gradients=5), never),
    "collected_per_worker": Row(
        collected(batch_size=B_MAX, gradients=12, per_worker=True), never
    ),
    "collected_per_worker_ignoring": Row(
        ignoring(collected)(gradients=6, per_worker=True), never
    ),
    "ringleader": Row(ringleader(batch_size=B_MAX), never),
    "ringleader_refresh": Row(ringleader(batch_size=B_MAX, refresh=True), never),
    "syncer": Row(
        syncer(
            batch_size=B_MAX,
            local_steps=6,
            fragments=3,
            quorum=2,
            grace=adaptive_grace(),
        ),
        never,
    ),
    "syncer_of_all": Row(syncer(batch_size=B_MAX, local_steps=2, quorum=6), never),
    "syncer_patient": Row(
        syncer(batch_size=B_MAX, local_steps=2, fragments=2, grace=2.5), never
    ),
}

# the one row of each new policy that is always tested
_QUICK = (
    "asynchronous_grace",
    "asynchronous_buffered",
    "streaming",
    "bounded_delay",
    "collected_per_worker",
    "ringleader",
    "syncer",
)
_RECENT = tuple(TABLE)[tuple(TABLE).index("asynchronous_grace") :]
OFTEN = quick_if(
    lambda name: name in _QUICK or name not in _RECENT,
    TABLE,
)
OFTEN_TREES = quick_if(
    lambda name: name not in _RECENT, [name for name in TABLE if "groups" in name]
)
