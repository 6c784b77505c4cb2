"""Mega-batches: dynamic dispatch. Tables of actions, and laws on any clock."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import arrivals, follow, infos, machine

from hetjax.machine import Arrival, LocalRound
from hetjax.schedule import PUSH_FETCH, linear_scaling, mega_batch

WORKERS = infos(1.0, 3.0, 2.0)


def recording(sizes_after):
    """A scaling rule that returns the next of `sizes_after`; a list of its calls."""
    calls = []

    def rule(sizes, updates):
        calls.append((tuple(sizes), tuple(updates)))
        return tuple(map(float, sizes_after[(len(calls) - 1) % len(sizes_after)]))

    return rule, calls


# Tables for three workers


def test_idle_workers_get_batches_until_the_mega_batch_is_spent():
    rule, calls = recording([(8, 6, 8)])
    policy = mega_batch(examples=40, batch_size=8, scaling=rule)
    assert follow(policy, WORKERS, (1, 1, 0, 1, 2, 2, 1, 0, 2, 0)) == [
        "0:1x8 1:1x8 2:1x8",  # 24 of 40 examples are dispatched
        "1:1x8",  # 1 is idle: 32
        "1:1x8",  # 1 again: 40, spent
        "",  # 0 waits
        "",  # 1 waits
        "merge 012 0:1x8 1:1x6 2:1x8",  # 2 was the last busy worker; 22 of 40
        "2:1x8",  # 30
        "1:1x6",  # 36
        "0:1x8",  # 44: the last batch is not cut
        "",  # 2 waits
        "",  # 0 waits, 1 is still busy
    ]
    assert calls == [((8.0, 8.0, 8.0), (1, 3, 1))]


def test_a_mega_batch_that_ends_with_the_first_batches():
    policy = mega_batch(examples=24, batch_size=8)
    everybody = "0:1x8 1:1x8 2:1x8"
    assert follow(policy, WORKERS, (2, 0, 1)) == [
        everybody,
        "",
        "",
        f"merge 012 {everybody}",
    ]


def test_a_mega_batch_of_fewer_batches_than_workers():
    rule, calls = recording([(8, 8, 8)])
    policy = mega_batch(examples=9, batch_size=8, scaling=rule)
    # 2 gets nothing: it is a member of the merge, but inactive, without updates
    assert follow(policy, WORKERS, (1, 0)) == [
        "0:1x8 1:1x8",
        "",
        "merge 012 0:1x8 1:1x8",
    ]
    assert calls == [((8.0, 8.0, 8.0), (1, 1, 0))]


def test_one_worker():
    policy = mega_batch(examples=20, batch_size=8)
    assert follow(policy, infos(1.0), (0, 0, 0)) == [
        "0:1x8",
        "0:1x8",
        "0:1x8",  # 24 >= 20
        "merge 0 0:1x8",
    ]


def test_real_valued_sizes_are_dispatched_rounded_and_counted_as_such():
    rule, _ = recording([(7.5, 6.4, 8)])
    policy = mega_batch(examples=22, batch_size=8, scaling=rule)
    table = follow(policy, WORKERS, (0, 1, 2, 0, 1))
    # 7.5, 6.4 and 8 are dispatched as 8, 6 and 8 examples: 22, spent
    assert table[3:] == ["merge 012 0:1x7.5 1:1x6.4 2:1x8", "", ""]
    local_round = LocalRound(1, 7.5, 7.5 / 8)
    assert local_round.examples == 8
    assert local_round.lr_scale == 0.9375  # from the real-valued size


def test_merges_block():
    policy = mega_batch(examples=24, batch_size=8)
    *_, last = arrivals(policy, machine(1.0, 3.0, 2.0), 3)
    (merge,) = last.actions.merges
    assert (merge.members, merge.blocking, merge.op) == ((0, 1, 2), True, PUSH_FETCH)


@pytest.mark.parametrize(
    ("every", "scaled_after"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (3, [3, 6])]
)
def test_scale_every(every, scaled_after):
    rule, calls = recording([(4, 8, 8), (8, 4, 8)])
    policy = mega_batch(examples=24, batch_size=8, scaling=rule, scale_every=every)
    entries = arrivals(policy, machine(1.0, 2.0, 0.5), 60)
    merges = [e.actions for e in entries if e.actions.merges][:6]
    sizes = [(8.0,) * 3] + [tuple(w.batch_size for _, w in m.dispatch) for m in merges]
    changed = [k for k in range(1, 7) if sizes[k] != sizes[k - 1]]
    assert changed == scaled_after
    # the updates of the last mega-batch, not all since the sizes changed
    assert all(8 * sum(updates) < 24 + 3 * 8 for _, updates in calls)


# Laws, for any durations


@st.composite
def plans(draw):
    """Settings of a mega-batch policy, and of a machine."""
    batch_size = draw(st.integers(1, 64))
    min_batch_size = batch_size / draw(st.sampled_from((1, 2, 8)))
    return {
        "min_batch_size": min_batch_size,
        "batch_size": batch_size,
        "beta": draw(st.floats(0.0, batch_size)),
        "bound": draw(st.sampled_from(("skip", "clip"))),
        "examples": draw(st.integers(1, 20 * batch_size)),
        "scale_every": draw(st.integers(1, 3)),
        "seconds": draw(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5)),
        "noise": draw(st.floats(0.0, 2.0)),
    }


def run(plan, num_arrivals=200):
    """(entries, calls of the scaling rule) of a plan."""
    calls = []
    rule = partial(
        linear_scaling,
        **{k: plan[k] for k in ("min_batch_size", "batch_size", "beta", "bound")},
    )

    def scaling(sizes, updates):
        calls.append((sizes, updates))
        return rule(sizes, updates)

    policy = mega_batch(
        examples=plan["examples"],
        batch_size=plan["batch_size"],
        scaling=scaling,
        scale_every=plan["scale_every"],
    )
    m = machine(*plan["seconds"], noise=plan["noise"])
    return arrivals(policy, m, num_arrivals), calls


def split(entries):
    """The entries of each mega-batch, which begins with the actions of a merge."""
    pieces = []
    for entry in entries:
        if entry.arrival is None or entry.actions.merges:
            pieces.append([])
        pieces[-1].append(entry)
    return pieces


def local_rounds(entries):
    return [given for entry in entries for given in entry.actions.dispatch]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans())
def test_every_example_of_a_mega_batch_is_dispatched(plan):
    entries, _ = run(plan)
    for piece in split(entries)[:-1]:
        out = [local_round.examples for _, local_round in local_rounds(piece)]
        # the last batch was dispatched while examples were left, so none came after it
        assert sum(out[:-1]) < plan["examples"] <= sum(out)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans())
def test_no_worker_idles_before_the_mega_batch_is_spent(plan):
    entries, _ = run(plan)
    for piece in split(entries):
        dispatched = 0
        for entry in piece:
            dispatched += sum(
                local_round.examples for _, local_round in entry.actions.dispatch
            )
            if dispatched < plan["examples"]:
                assert entry.busy == set(range(len(plan["seconds"])))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans())
def test_merges_contain_all_workers_and_wait_for_them(plan):
    entries, _ = run(plan)
    for before, entry in zip(entries, entries[1:], strict=False):
        assert len(entry.actions.merges) <= 1
        for merge in entry.actions.merges:
            assert merge.members == tuple(range(len(plan["seconds"])))
            assert before.busy == {entry.arrival.worker}  # the last busy worker


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans())
def test_sizes_stay_within_bounds_and_learning_rates_follow_them(plan):
    entries, _ = run(plan)
    for _, local_round in local_rounds(entries):
        assert local_round.local_steps == 1
        assert plan["min_batch_size"] <= local_round.batch_size <= plan["batch_size"]
        assert local_round.lr_scale / local_round.batch_size == pytest.approx(
            1 / plan["batch_size"]
        )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans())
def test_the_scaling_rule_is_told_the_dispatched_batches(plan):
    entries, calls = run(plan)
    pieces = split(entries)[:-1]
    told = iter(calls)
    for number, piece in enumerate(pieces, start=1):
        if number % plan["scale_every"]:
            continue
        sizes, updates = next(told)
        workers = [worker for worker, _ in local_rounds(piece)]
        assert updates == tuple(workers.count(k) for k in range(len(plan["seconds"])))
        for worker, local_round in local_rounds(piece):
            assert local_round.batch_size == sizes[worker]
    assert next(told, None) is None


def test_old_states_stay_valid():
    """`react` changes no state in place: an old state gives the old answers."""
    policy = mega_batch(examples=40, batch_size=8)
    state, _ = policy.init(WORKERS, 1000)
    arrival = Arrival(0, LocalRound(1, 8), 0.0, 1.0)
    first = policy.react(state, arrival)
    policy.react(first[0], arrival._replace(worker=1))
    assert policy.react(state, arrival) == first


# Errors


def test_no_workers():
    with pytest.raises(ValueError, match="mega_batch: there are no workers"):
        mega_batch(examples=40, batch_size=8).init((), 1000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("examples", 0),  # no worker would ever get a round
        ("examples", -1),
        ("batch_size", 0),
        ("scale_every", 0),
        ("scale_every", -1),
    ],
)
def test_settings_that_are_not_positive(name, value):
    with pytest.raises(ValueError, match=f"^{name}={value}: pass a"):
        mega_batch(**({"examples": 40, "batch_size": 8} | {name: value}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "8", (8, 8)])
def test_a_batch_size_that_is_no_number(value):
    with pytest.raises(ValueError, match="batch_size=.*: pass a number above 0"):
        mega_batch(examples=40, batch_size=value)
