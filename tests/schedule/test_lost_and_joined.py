"""Workers that are killed and join at any time: laws that every policy keeps."""

import itertools

import pytest
from hypothesis import given, settings
from machines_with_faults import END, machines_with_faults
from policy_driver import follow, infos, machine, timeline
from policy_table import B_MAX, NUM_WORKERS, OFTEN, TABLE

from hetjax.engine.decisions import decisions
from hetjax.machine import (
    Arrival,
    Cost,
    Join,
    Leave,
    Link,
    Machine,
    Profile,
    ScriptedFault,
    SimulatedClock,
)
from hetjax.schedule import (
    Actions,
    MergeOp,
    asynchronous,
    downpour,
    hierarchical,
    linear_scaling,
    magma_async,
    mega_batch,
    one_per_device,
    random_partner,
    rounds,
    tuned_workers,
)

LAWS = settings(deadline=None, derandomize=True)
MACHINES = machines_with_faults(NUM_WORKERS, spared=2)  # a master has a slave
NUM_EVENTS = 200


@pytest.mark.parametrize("name", OFTEN)
@settings(LAWS, max_examples=10)
@given(machine=MACHINES)
def test_no_worker_waits_for_a_lost_one(name, machine):
    others_go_on(name, machine)


@pytest.mark.full  # the same on more machines
@pytest.mark.parametrize("name", TABLE)
@settings(LAWS, max_examples=25)
@given(machine=MACHINES)
def test_no_worker_waits_for_a_lost_one_on_more_machines(name, machine):
    others_go_on(name, machine)


def others_go_on(name, machine):
    """The clock itself refuses rounds for inactive or busy workers.

    A lost worker is in no merge before it rejoins, and the others go on.
    """
    clock = SimulatedClock(machine, seed=0)
    run = decisions(TABLE[name].policy, clock, num_examples=1000, num_bytes=1e8)
    active = {info.index for info in clock.workers if info.present}
    arrived_late, over = set(), False
    goes_on = 0 if name == "fastest" else 1  # where only one worker computes
    for count, (event, actions) in enumerate(itertools.islice(run, 4000)):
        if isinstance(event, Leave) and event.lost:
            active.discard(event.worker)
        if isinstance(event, Join):
            active.add(event.worker)
        for merge in actions.merges:
            workers = {
                m for m in (*merge.members, *merge.partners) if isinstance(m, int)
            }
            assert workers <= active
            assert merge.members or merge.op & MergeOp.APPLY
        over = over or (event is not None and event.time > END + 10.0)
        if over and isinstance(event, Arrival):
            arrived_late.add(event.worker)
        if over and count > NUM_EVENTS and len(arrived_late) > goes_on:
            break
    assert over, "a deadlock"
    assert len(arrived_late) > goes_on or len(active) <= 2


def test_lost_in_rounds():
    """The others merge without it, and go on without it until it joins."""
    policy = rounds(batch_size=8)
    events = (0, 1, Leave(2, 1.0, lost=True), 0, Join(2, 2.0), 1, 0, 2, 1)
    assert follow(policy, infos(1.0, 1.0, 1.0), events) == [
        "0:1x8 1:1x8 2:1x8",
        "",
        "",
        "merge 01 0:1x8 1:1x8",  # there is no worker left to wait for
        "",
        "",
        "merge 01 0:1x8 1:1x8 2:1x8",
        "",
        "",
        "merge 012 0:1x8 1:1x8 2:1x8",
    ]


def test_lost_after_its_arrival():
    """Its round is lost with it."""
    policy = rounds(batch_size=8)
    events = (2, Leave(2, 1.0, lost=True), 0, 1)
    assert follow(policy, infos(1.0, 1.0, 1.0), events)[-1] == "merge 01 0:1x8 1:1x8"


def test_the_next_fastest_takes_over():
    def fastest(workers):
        return (min(workers, key=lambda w: w.fixed).index,)

    policy = rounds(batch_size=8, workers=fastest)
    events = (1, Leave(1, 1.0, lost=True), 2, Join(1, 2.0), 2, 1)
    assert follow(policy, infos(9.0, 1.0, 3.0), events) == [
        "1:1x8",
        "merge 1 1:1x8",
        "2:1x8",
        "merge 2 2:1x8",
        "",
        "merge 2 1:1x8",
        "merge 1 1:1x8",
    ]


def test_lost_in_a_mega_batch():
    """Its batches are not given out again; it is neither scaled nor merged any more."""

    def rule(sizes, updates):
        assert updates == (2, 1), "of those who are there"
        return linear_scaling(sizes, updates, min_batch_size=1, batch_size=8, beta=2)

    policy = mega_batch(examples=32, batch_size=8, scaling=rule)
    events = (0, Leave(2, 1.0, lost=True), 0, 1)
    assert follow(policy, infos(1.0, 1.0, 1.0), events) == [
        "0:1x8 1:1x8 2:1x8",
        "0:1x8",
        "",
        "",
        "merge 01 0:1x8 1:1x7",
    ]


def test_a_worker_that_joins_a_mega_batch_gets_a_batch_at_once():
    policy = mega_batch(examples=32, batch_size=8)
    workers = infos(1.0, 1.0, 1.0)
    workers = (*workers[:2], workers[2]._replace(present=False))
    assert follow(policy, workers, (0, Join(2, 1.0), 0, 1, 2)) == [
        "0:1x8 1:1x8",
        "0:1x8",
        "2:1x8",
        "",
        "",
        "merge 012 0:1x8 1:1x8 2:1x8",
    ]


def test_no_worker_waits_for_the_slowest_after_its_loss():
    """Worker 0 is two rounds ahead of worker 1: it waits until worker 1 is lost."""
    policy = asynchronous(batch_size=8, max_staleness=1)
    events = (0, 0, Leave(1, 1.0, lost=True), 0, Join(1, 2.0), 1)
    assert follow(policy, infos(1.0, 9.0), events) == [
        "0:1x8 1:1x8",
        "merge 0 0:1x8",
        "merge 0 push",
        "merge 0 fetch 0:1x8",
        "merge 0 0:1x8",
        "1:1x8",  # it begins with the round count of the slowest, worker 0
        "merge 1 1:1x8",
    ]


def test_no_gossip_with_a_lost_worker():
    policy = asynchronous(batch_size=8, partners=random_partner())
    events = (0, Leave(2, 1.0, lost=True), *(0, 1) * 10)
    table = follow(policy, infos(1.0, 1.0, 1.0), events)
    assert {row.split(" ", 1)[1][:8] for row in table[3:]} == {"0 with 1", "1 with 0"}


def test_a_worker_that_joins_downpour_has_an_empty_mailbox():
    policy = downpour(batch_size=8, push_every=1, fetch_every=1)
    events = (0, Leave(0, 1.0, lost=True), Join(0, 2.0), 0)
    assert follow(policy, infos(1.0), events) == [
        "0:1x8",
        "merge 0 push+request 0:1x8",
        "",
        "0:1x8",
        "merge 0 push+request 0:1x8",  # no "deliver": its request was never answered
    ]


def test_a_lost_slaves_gradient_does_not_stay():
    """g is cleared, and the other slaves' gradients are not subtracted again."""
    policy = magma_async(batch_size=8)
    events = (0, 2, 0, Leave(2, 1.0, lost=True), 0, 0, 0)
    assert follow(policy, infos(1.0, 4.0, 2.0), events) == [
        "0:0x8 2:0x8",
        "merge 0 step+subtract+fetch 0:1x8",
        "merge 2 step+subtract+fetch 2:1x8",
        "merge 0 step+push 0:0x8",
        "",
        "merge 0 step+clear+forget+subtract+fetch 0:1x8",
        "merge 0 step+push 0:0x8",
        "merge 0 step+subtract+fetch 0:1x8",
    ]


def test_a_lost_masters_place_is_taken():
    """By the slowest worker left: it subtracts its gradient and stops computing."""
    policy = magma_async(batch_size=8)
    events = (0, 2, Leave(1, 1.0, lost=True), 2, 0, Join(1, 2.0), 1)
    assert follow(policy, infos(1.0, 4.0, 2.0), events) == [
        "0:0x8 2:0x8",
        "merge 0 step+subtract+fetch 0:1x8",
        "merge 2 step+subtract+fetch 2:1x8",
        "",
        "merge 2 step+subtract",
        "merge 0 step+push 0:0x8",
        "1:0x8",
        "merge 1 step+subtract+fetch 1:1x8",
    ]


def test_no_worker_waits_for_an_empty_group():
    """Group 1 is lost before its merge, joins, and takes part again."""
    policy = hierarchical(rounds(batch_size=8), sizes=1, every=1)
    events = (0, Leave(1, 1.0, lost=True), 0, Join(1, 2.0), 1, 0)
    workers = infos(1.0, 1.0)
    assert follow(policy, workers, events) == [
        "0:1x8 1:1x8",
        "merge group0: 0",
        "merge group0 merge group0: 0 fetch 0:1x8",
        "merge group0: 0 merge group0 merge group0: 0 fetch 0:1x8",
        "1:1x8",
        "merge group1: 1",
        "merge group0: 0 merge group0+group1 merge group0: 0 fetch "
        "merge group1: 1 fetch 0:1x8 1:1x8",
    ]


def test_the_merges_of_a_lost_group_count():
    policy = hierarchical(rounds(batch_size=8), sizes=1, every=1)
    events = (1, Leave(1, 1.0, lost=True), 0)
    assert follow(policy, infos(1.0, 1.0), events)[-1] == (
        "merge group0: 0 merge group0+group1 merge group0: 0 fetch 0:1x8"
    )


def test_the_tuner_does_not_start_a_lost_worker():
    """Two learners on one device; the spare one is killed before it would start."""
    inner = rounds(batch_size=B_MAX, first=one_per_device)
    policy = tuned_workers(inner, window=2)
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(1.0, 0.0), device="d", curve=(1.0, 1.5))
        for k in range(2)
    )
    killed = (ScriptedFault(0.5, "kill", "w1"),)
    # the tuner stops it at 0 s, too: that Leave comes after the Leave of its loss
    at_once = (ScriptedFault(0.0, "kill", "w1"),)
    for faults, started in (((), True), (killed, False), (at_once, False)):
        m = Machine("m", workers, {"": Link(latency=0.0, bandwidth=1e9)}, faults=faults)
        table = timeline(policy, m, 20)
        assert any("start 1" in row for row in table) is started


def test_a_spare_worker_takes_a_lost_ones_place():
    """Also after the tuning: otherwise its device would stay idle to the end."""
    policy = tuned_workers(rounds(batch_size=8, first=one_per_device), window=1)
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(1.0, 0.0), device=f"d{k // 2}") for k in range(4)
    )
    killed = (ScriptedFault(20.25, "kill", "w0"),)
    m = Machine("m", workers, {"": Link(latency=0.0, bandwidth=1e9)}, faults=killed)
    table = timeline(policy, m, 80)
    (lost,) = [k for k, row in enumerate(table) if row.startswith("20.25 leave 0")]
    assert "start" not in " ".join(table[lost - 10 : lost])  # the tuning is over
    assert table[lost].endswith("> start 1")
    assert any(row.startswith("22 w1 from") for row in table[lost:])


def test_an_empty_machine_is_an_error():
    faults = tuple(ScriptedFault(1.0, "join", f"w{k}") for k in range(2))
    with pytest.raises(ValueError, match="no worker is active when the run begins"):
        machine(1.0, 1.0, faults=faults)


def test_other_membership_events_change_nothing():
    state, _ = rounds(batch_size=8).init(infos(1.0, 1.0), 1000)
    assert rounds(batch_size=8).react(state, Leave(1, 1.0))[1] == Actions()
