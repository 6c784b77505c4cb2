"""Laws of all policies on any machine: a table of policies, random speeds."""

import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_table import (
    B_MAX,
    B_MIN,
    EVERY,
    NUM_WORKERS,
    OFTEN,
    OFTEN_TREES,
    STALE,
    TABLE,
    Log,
    node_of,
)

from hetjax.engine.decisions import decisions
from hetjax.machine import Arrival, Cost, Link, Machine, Profile, SimulatedClock
from hetjax.schedule import ROOT, MergeOp

NUM_EVENTS = 250
LAWS = settings(max_examples=12, deadline=None, derandomize=True)
ROWS = pytest.mark.parametrize("name", OFTEN)
TREES = pytest.mark.parametrize("name", OFTEN_TREES)


@st.composite
def machines(draw):
    """Six workers on three devices in two places; speeds differ by up to 100 times."""
    factors = draw(
        st.lists(st.floats(0.1, 10), min_size=NUM_WORKERS, max_size=NUM_WORKERS)
    )
    fixed = draw(st.sampled_from((0.0, 0.5, 1.0)))
    curve = draw(st.sampled_from(((1.0,), (1.0, 1.5), (1.0, 2.0))))
    workers = tuple(
        Profile(
            f"w{k}",
            "gpu",
            Cost(fixed, 0.01),
            factor=factor,
            place=(f"rack{k // 4}", f"node{k // 2}"),
            device=f"d{k // 2}",
            curve=curve,
        )
        for k, factor in enumerate(factors)
    )
    link = Link(latency=draw(st.sampled_from((0.0, 0.1, 5.0))), bandwidth=1e9)
    links = {"": link, "rack0": link, "rack0/node1": link}
    noise = draw(st.sampled_from((0.0, 0.5)))
    return Machine("m", workers, links, noise=noise, seed=draw(st.integers(0, 9)))


def run(name, machine, num_events=NUM_EVENTS, changed=lambda policy: policy):
    """(event, actions, log) of a run, which does not end before `num_events`."""
    policy, clock = changed(TABLE[name].policy), SimulatedClock(machine, seed=0)
    log = Log(clock.workers)
    count = 0
    events = decisions(policy, clock, num_examples=1000, num_bytes=1e8)
    for event, actions in itertools.islice(events, num_events):
        log.add(event, actions)
        count += 1
        yield event, actions, log
    assert count == num_events, "no worker is busy, and none ever will be: a deadlock"


@ROWS
@LAWS
@given(machine=machines())
def test_workers_idle_only_at_barriers_and_get_valid_rounds_and_merges(name, machine):
    """Three laws of one run.

    There is no deadlock, no dispatch to a busy worker, no merge of one, and no worker
    idles without a barrier. Sizes and learning rates are within bounds. Members and
    partners of a merge are children of its node, whose workers are below it.
    """
    row, local_rounds = TABLE[name], 0
    tree = row.policy.topology(SimulatedClock(machine, seed=0).workers)
    for event, actions, log in run(name, machine):
        local_rounds += isinstance(event, Arrival)
        for worker in set(range(NUM_WORKERS)) - log.busy:
            assert row.may_idle(log, worker)
        for _, local_round in actions.dispatch:
            assert B_MIN <= local_round.batch_size <= B_MAX
            scale = local_round.batch_size / B_MAX
            if name == "asynchronous_rescaled":
                continue
            assert abs(local_round.lr_scale - scale) <= 1e-6 * scale
        for merge in actions.merges:
            node = tree.node(merge.node)
            assert set(merge.members) | set(merge.partners) <= set(node.children)
            below = [tree.workers_of(m) for m in node.children]
            assert node.workers == frozenset().union(*below)
    assert local_rounds > NUM_EVENTS / 5  # not only merges happen


def checked(policy):
    """The same policy, which reacts twice to check that the state did not change."""

    def react(state, event):
        kept = pickle.dumps(state)
        first = policy.react(state, event)
        assert policy.react(state, event) == first
        assert pickle.dumps(state) == kept
        hash(first[1])  # actions are values: they cannot be changed later
        return first

    return policy._replace(react=react)


@ROWS
@settings(max_examples=3, deadline=None, derandomize=True)
@given(machine=machines())
def test_states_are_values(name, machine):
    assert sum(1 for _ in run(name, machine, changed=checked)) == NUM_EVENTS


def leaves(tree):
    """The number of leaves of a state."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return sum(map(leaves, tree)) if isinstance(tree, tuple) else 1


@ROWS
def test_states_do_not_grow(name):
    """A state after 2000 events is no larger than the largest of the first 500."""
    states = []

    def react(state, event):
        state, actions = TABLE[name].policy.react(state, event)
        states.append(state)
        return state, actions

    def noting(policy):
        return policy._replace(react=react)

    assert sum(1 for _ in run(name, noisy_machine(), 2000, noting)) == 2000
    assert max(map(leaves, states[500::10])) <= max(map(leaves, states[:500]))


def noisy_machine():
    workers = tuple(
        Profile(
            f"w{k}",
            "gpu",
            Cost(0.5, 0.01),
            factor=1 + k / 7,
            place=(f"rack{k // 4}", f"node{k // 2}"),
            device=f"d{k // 2}",
        )
        for k in range(NUM_WORKERS)
    )
    return Machine("m", workers, {"": Link(latency=0.01, bandwidth=1e9)}, noise=0.2)


# Staleness


@LAWS
@given(machine=machines())
def test_no_worker_is_further_ahead_than_allowed(machine):
    """A round begins at most `max_staleness` rounds ahead of the slowest worker."""
    for _, actions, log in run("asynchronous_stale", machine):
        slowest = min(log.local_rounds[k] for k in range(NUM_WORKERS))
        for worker, _ in actions.dispatch:
            assert log.local_rounds[worker] <= slowest + STALE
        assert max(log.local_rounds.values(), default=0) <= slowest + STALE + 1


# Trees


@pytest.mark.parametrize(
    "name", ["groups", "groups_without_broadcast", "sma_restarts_of_groups"]
)
@LAWS
@given(machine=machines())
def test_every_worker_did_the_same_rounds_at_the_roots_merge(name, machine):
    done = dict.fromkeys(range(NUM_WORKERS), 0)
    full = set()  # groups that wait for the root
    for event, actions, _ in run(name, machine):
        if isinstance(event, Arrival):
            done[event.worker] += 1
        for merge in actions.merges:
            if merge.node == ROOT:
                assert set(done.values()) == {EVERY}
                assert merge.members == ("group0", "group1", "group2")
                done, full = dict.fromkeys(done, 0), set()
            elif MergeOp.PUSH in merge.op:
                assert len({done[k] for k in merge.members}) == 1
                assert {node_of(k) for k in merge.members} == {merge.node}
                if done[merge.members[0]] == EVERY:
                    full.add(merge.node)
        for worker, _ in actions.dispatch:
            assert node_of(worker) not in full


@pytest.mark.parametrize("name", ["groups_of_mega_batches", "groups_of_asynchronous"])
@LAWS
@given(machine=machines())
def test_a_full_group_gets_no_rounds(name, machine):
    merges = dict.fromkeys(("group0", "group1", "group2"), 0)
    for _, actions, _ in run(name, machine):
        for merge in actions.merges:
            if merge.node == ROOT:
                assert min(merges.values()) >= EVERY
                merges = dict.fromkeys(merges, 0)
            elif MergeOp.PUSH in merge.op:
                merges[merge.node] += 1
        for worker, _ in actions.dispatch:
            assert merges[node_of(worker)] < EVERY


@TREES
@LAWS
@given(machine=machines())
def test_the_root_merges_when_no_worker_is_busy_and_models_come_down(name, machine):
    """After the root's merge every node takes the model of its parent, and then every
    worker that of its node; without broadcast none does."""
    tree = TABLE[name].policy.topology(SimulatedClock(machine, seed=0).workers)
    for event, actions, log in run(name, machine):
        nodes = [m.node for m in actions.merges]
        if ROOT not in nodes:
            continue
        assert isinstance(event, Arrival)
        assert {k for k, _ in actions.dispatch} == log.busy
        down = actions.merges[nodes.index(ROOT) + 1 :]
        if name == "groups_without_broadcast":
            assert down == ()
            continue
        assert {m.op for m in down} == {MergeOp.FETCH}
        levels = [tree.level(m.node) for m in down]
        assert levels == sorted(levels, reverse=True)
        taken = [k for m in down for k in m.members if isinstance(k, int)]
        assert sorted(taken) == list(range(NUM_WORKERS))
        has = {k for m in actions.merges if m.node == ROOT for k in m.members}
        for m in down:
            assert m.node in has
            has |= set(m.members)
