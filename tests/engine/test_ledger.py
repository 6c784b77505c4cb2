"""The ledger of a run, against numbers computed by hand for two or three workers."""

from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tiny_runs import (
    averaging,
    column,
    counting_data,
    counting_task,
    machine,
    one_by_one,
    seconds_of,
    silent,
    train,
)

import hetjax as hj
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.engine.records.ledger import Ledger
from hetjax.machine import (
    Arrival,
    Cost,
    Link,
    LocalRound,
    Machine,
    Profile,
    SimulatedClock,
    flat,
)
from hetjax.machine.types import MergeOp


def strategies(batch_size=2):
    """One strategy of each kind, small enough to merge often."""
    common = {"batch_size": batch_size, "learning_rate": 0.1}
    return {
        "sequential_sgd": hj.sequential_sgd(**common),
        "sync_sgd": hj.sync_sgd(**common),
        "elastic_sgd": hj.elastic_sgd(local_steps=2, **common),
        "sma": hj.sma(**common),
        "sma, blocking": hj.sma(blocking=True, local_steps=2, **common),
        "adaptive_sgd": hj.adaptive_sgd(
            batch_size=4, min_batch_size=1, beta=1.0, learning_rate=0.1, mega_batch=12
        ),
    }


def test_blocking_rounds():
    """Two steps each: a 0-2, b 0-4, merge 4-4.5, a 4.5-6.5, b 4.5-8.5."""
    history = train(
        machine(1.0, 2.0, link=0.5),
        averaging(local_steps=2, batch_size=3),
        8.0,
        num_evals=8,
    )
    assert seconds_of(history) == [(4.0, 3.5, 0.5, 0.0), (7.5, 0.0, 0.5, 0.0)]
    assert [w.updates for w in history.workers] == [4, 2]  # b's second is unfinished
    assert [w.examples for w in history.workers] == [12, 6]
    assert [w.batch_size_over_time for w in history.workers] == [[(0.0, 3.0)]] * 2
    assert [w.staleness for w in history.workers] == [{0: 1}] * 2
    assert (history.merges, history.duration) == (1, 8.0)
    assert history.waiting_share() == 3.5 / 16


def test_an_evaluation_counts_the_rounds_that_have_arrived():
    """The same run: arrivals at 2 (a), 4 (b) and 6.5 (a), two updates each."""
    history = train(
        machine(1.0, 2.0, link=0.5),
        averaging(local_steps=2, batch_size=3),
        8.0,
        num_evals=8,
    )
    assert column(history, "seconds") == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert column(history, "updates") == [0, 0, 2, 2, 4, 4, 4, 6, 6]
    assert column(history, "examples") == [0, 0, 6, 6, 12, 12, 12, 18, 18]


def test_overlapping_rounds_on_a_quick_link():
    """Merges 2-2.5, 4-4.5 overlap with the next steps and delay no worker."""
    strategy = averaging(blocking=False)
    history = train(machine(1.0, 2.0, link=0.5), strategy, 6.0)
    assert seconds_of(history) == [(3.0, 3.0, 0.0, 0.0), (6.0, 0.0, 0.0, 0.0)]


def test_overlapping_rounds_on_a_slow_link():
    """Merges 2-5, 5-8, 8-11, requested at 2, 4, 7, so members queue 4-5 and 7-8.

    a computes 0-1, 2-3, 5-6, 8-9 and b 0-2, 2-4, 5-7, 8-10.
    """
    strategy = averaging(blocking=False)
    history = train(machine(1.0, 2.0, link=3.0), strategy, 9.0)
    assert seconds_of(history) == [(4.0, 3.0, 2.0, 0.0), (7.0, 0.0, 2.0, 0.0)]
    assert [w.updates for w in history.workers] == [4, 3]
    assert [w.staleness for w in history.workers] == [{0: 3}] * 2


def test_a_merge_is_truncated_at_the_end():
    """Merge 2-5, but the run ends at 3; later rounds would begin too late."""
    history = train(machine(1.0, 2.0, link=3.0), averaging(), 3.0)
    assert seconds_of(history) == [(1.0, 1.0, 1.0, 0.0), (2.0, 0.0, 1.0, 0.0)]
    assert [w.updates for w in history.workers] == [1, 1]


def test_batch_sizes_end_with_the_run():
    """The mega-batches of `test_adaptive_sgd`, but the first merge is 2-5, too late."""
    strategy = hj.adaptive_sgd(
        batch_size=4, min_batch_size=1, beta=1.0, learning_rate=1.0, mega_batch=12
    )
    history = train(machine(1.0, 2.0, link=3.0), strategy, 4.0)
    assert [w.batch_size_over_time for w in history.workers] == [[(0.0, 4.0)]] * 2


def test_an_unused_worker_is_idle():
    """Only the fastest, b, computes: steps of 1 s; it merges alone, without a link."""
    strategy = hj.sequential_sgd(batch_size=2, learning_rate=1.0)
    history = train(machine(2.0, 1.0, link=0.5), strategy, 6.0)
    assert seconds_of(history) == [(0.0, 0.0, 0.0, 6.0), (6.0, 0.0, 0.0, 0.0)]
    assert [w.updates for w in history.workers] == [0, 6]
    assert history.workers[0].batch_size_over_time == []
    assert history.waiting_share() == 0.0


def test_adaptive_sgd():
    """A mega-batch is 12 examples; a step is 1 s (a) or 2 s (b), whatever its size.

    | from | a's batches | b's  | merge   | updates | b's next size |
    | 0    | 4 4         | 4    | 2-2.5   | 2, 1    | 4 - 1/2       |
    | 2.5  | 4 4         | 4    | 4.5-5   | 2, 1    | 3.5 - 1/2     |
    | 5    | 4 4 4       | 3    | 8-8.5   | 3, 1    | 3 - 1         |

    a stays at 4, the largest size. (3.5 is dispatched as 4.) In the third mega-batch a
    gets a last batch at 7, just before b arrives, because 11 of 12 examples are
    dispatched. The run ends at 9.
    """
    strategy = hj.adaptive_sgd(
        batch_size=4, min_batch_size=1, beta=1.0, learning_rate=1.0, mega_batch=12
    )
    history = train(machine(1.0, 2.0, link=0.5), strategy, 9.0)
    a, b = history.workers
    assert a.batch_size_over_time == [(0.0, 4.0)]
    assert b.batch_size_over_time == [(0.0, 4.0), (2.5, 3.5), (5.0, 3.0), (8.5, 2.0)]
    assert (a.updates, b.updates) == (7, 3)
    assert (a.examples, b.examples) == (28, 11)
    assert seconds_of(history) == [(7.5, 0.0, 1.5, 0.0), (6.5, 1.0, 1.5, 0.0)]
    assert history.merges == 3


def test_padding_is_counted_separately():
    """The buckets up to 16 are 16, 13, 11, ...: a batch of 10 is padded by one."""
    strategy = averaging(batch_size=(10, 16))
    history = train(machine(1.0, 1.0), strategy, 2.5)
    assert [w.examples for w in history.workers] == [20, 32]
    # a third batch is in progress when the run ends: it is not counted
    assert [w.padded for w in history.workers] == [2, 0]


def test_staleness_counts_merges_since_the_fetch():
    """All workers fetched version 0 and merge one after the other."""
    strategy = averaging(policy=one_by_one((1.0, 1.0, 1.0)))
    history = train(machine(1.0, 2.0, 3.0), strategy, 4.0)
    assert [w.staleness for w in history.workers] == [{0: 1}, {1: 1}, {2: 1}]


@pytest.mark.parametrize("name", strategies())
def test_synchronous_strategies_are_never_stale(name):
    history = train(machine(1.0, 1.5, 2.0, link=0.25), strategies()[name], 12.0)
    used = [w for w in history.workers if w.updates]
    assert used
    # the last merge may end after the run
    begun = history.merges + (name == "sma")
    assert [w.staleness for w in used] == [{0: begun}] * len(used)


# The laws of the ledger, on any machine.


@cache
def session():
    """One session for all machines: the compiled programs do not depend on them."""
    task, data = counting_task(), counting_data()
    return Session(
        task, data, machine(1.0), RunConfig(seconds=12.0, num_evals=3)
    ), strategies()


positive = st.floats(0.3, 3.0)
profiles = st.builds(lambda a, c: Cost(a, c), positive, st.floats(0.0, 0.2))
links = st.builds(
    Link,
    latency=st.floats(0.0, 2.0),
    bandwidth=st.floats(1.0, 100.0),  # so that 4 bytes take up to 4 s
    topology=st.sampled_from(("ring", "tree", "central")),
)


@st.composite
def machines(draw):
    costs = draw(st.lists(profiles, min_size=2, max_size=3))
    workers = tuple(Profile(f"w{k}", "kind", c) for k, c in enumerate(costs))
    noise = draw(st.sampled_from((0.0, 0.3)))
    return Machine("random", workers, {"": draw(links)}, noise=noise)


@pytest.mark.parametrize("name", strategies())
@settings(max_examples=12, deadline=None, derandomize=True)
@given(machine=machines())
def test_the_four_kinds_of_seconds_sum_to_the_duration(name, machine):
    one, table = session()
    one.machine = machine
    history = one.run(name, table[name], 0, silent())
    assert history.duration == 12.0
    for k, worker in enumerate(history.workers):
        seconds = worker.busy, worker.waiting, worker.merging, worker.idle
        assert min(seconds) >= 0
        assert sum(seconds) == pytest.approx(12.0, rel=1e-12)
        # waiting is the rest, so the sum proves little if two kinds can overlap
        mine = sorted((s.start, s.finish) for s in history.timeline if s.worker == k)
        ends = [finish for _, finish in mine]
        assert all(
            end <= start for end, (start, _) in zip(ends, mine[1:], strict=False)
        )
    assert sum(w.updates for w in history.workers) == history.evals[-1]["updates"]
    assert sum(w.examples for w in history.workers) == history.evals[-1]["examples"]


def every_other(op):
    """A worker of which one step in two is merged; `op` is done with the others."""
    work = hj.schedule.LocalRound(1, 2)

    def init(workers, num_examples):
        return 0, hj.schedule.Actions(dispatch=((0, work),))

    def react(step, event):
        if not isinstance(event, hj.schedule.Arrival):
            return step, hj.schedule.Actions()
        actions = hj.schedule.Actions(dispatch=((0, work),))
        if step % 2:
            actions = actions._replace(merges=(hj.schedule.MergeAction((0,)),))
        elif op is not None:
            fetch = hj.schedule.MergeAction((0,), op=op)
            actions = actions._replace(merges=(fetch,))
        return step + 1, actions

    return hj.schedule.Policy(init, react)


@pytest.mark.parametrize(
    ("strategy", "op", "updates"),
    [
        (hj.async_sgd, MergeOp.FETCH, 3),  # the gradient that was not pushed is gone
        (hj.async_sgd, None, 3),  # the next one overwrites it
        (hj.elastic_sgd, MergeOp.FETCH, 3),  # the center is in place of the step
        (hj.elastic_sgd, None, 6),  # both steps are in the model that is merged
        (hj.downpour, MergeOp.FETCH, 6),  # gradients add up until they are pushed
    ],
)
def test_ignored_updates_do_not_count(strategy, op, updates):
    made = strategy(batch_size=2, learning_rate=0.1)._replace(policy=every_other(op))
    history = train(machine(1.0), made, 6.5, num_evals=1)
    assert (history.workers[0].updates, history.evals[-1]["updates"]) == (updates,) * 2
    assert history.workers[0].examples == 12


def test_evaluations_have_merges_and_the_training_loss():
    """Merges at 2.5 and 4.5: see above."""
    strategy = averaging(blocking=False)
    history = train(machine(1.0, 2.0, link=0.5), strategy, 6.0, num_evals=6)
    assert column(history, "merges") == [0, 0, 0, 1, 1, 2, 2]
    assert "train_loss" not in history.evals[0]  # no round has ended
    losses = [point["train_loss"] for point in history.evals[1:]]
    assert all(isinstance(loss, float) for loss in losses)


def test_discarded_steps_do_not_pass_their_numbers_to_others():
    """The keys of steps are made from their numbers, so that none comes twice."""
    workers = SimulatedClock(machine(1.0), seed=0).workers
    ledger = Ledger(workers, flat(workers), overwrites=True)
    for start in range(3):
        ledger.record_dispatch(0, LocalRound(2, 1), start, 0.1)
        assert ledger.steps_of(0) == 2 * start
        ledger.record_arrival(Arrival(0, LocalRound(2, 1), start, start + 1), 0)
    assert ledger.records[0].updates == ledger.updates == 2
    assert ledger.steps_of(0) == 6


def test_a_discarded_round_that_was_not_finite_is_undone_once():
    workers = SimulatedClock(machine(1.0), seed=0).workers
    ledger = Ledger(workers, flat(workers), overwrites=True)
    arrivals = [Arrival(0, LocalRound(1, 1), k, k + 1) for k in range(2)]
    for arrival in arrivals:
        ledger.record_dispatch(0, arrival.local_round, arrival.start, 0.1)
        ledger.record_arrival(arrival, 0)
    ledger.undo_arrival(arrivals[0], 0)
    assert ledger.records[0].updates == ledger.updates == 1
    assert (ledger.records[0].nans, ledger.steps_of(0)) == (1, 2)
