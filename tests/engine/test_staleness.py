"""Staleness of three workers by hand: versions of the model since the fetch.

Steps take 2 s (a), 3 s (b) and 5 s (c), and links take no time, so that the arrivals
until 9.5 s are

    time      2    3    4    5    6    6    8    9
    worker    a    b    a    c    a    b    a    b
    version   0    1    2    3    4    5    6    7      before the push
"""

import pytest
from tiny_runs import column, machine, seconds_of, train

import hetjax as hj

BOTH = {"batch_size": 1, "learning_rate": 0.1}


def tables(strategy, link=0.0, seconds=9.5):
    history = train(machine(2.0, 3.0, 5.0, link=link), strategy, seconds)
    assert history.stopped == ""
    return [w.staleness for w in history.workers]


@pytest.mark.parametrize(
    "strategy",
    [
        hj.async_sgd(**BOTH),
        hj.hogwild(**BOTH),
        hj.easgd(**BOTH),
        hj.eamsgd(**BOTH),
        # being a partner gives no newer version: the gradient is as old as before
        hj.ad_psgd(**BOTH),
    ],
    ids=lambda s: s.name,
)
def test_a_worker_that_pushes_also_fetches(strategy):
    """Each worker has the version of its own last push, plus one.

    a has 0, 1, 3, 5 and b 0, 2, 6; c has 0.
    """
    assert tables(strategy) == [{0: 1, 1: 3}, {1: 2, 3: 1}, {3: 1}]


def test_elastic_averaging_in_periods():
    """Two steps each: a arrives at 4, 8, 12, 16, b at 6, 12, 18, c at 10.

    The order is a b a c a b a b, as above (at 12, a comes first): the same table.
    """
    strategy = hj.easgd(local_steps=2, **BOTH)
    assert tables(strategy, seconds=18.5) == [{0: 1, 1: 3}, {1: 2, 3: 1}, {3: 1}]


def test_downpour():
    """A step uses the model that was requested at the end of the step before last.

    | time | worker | version | its model's | requested |
    | 2    | a      | 0       | 0           | 1         |
    | 3    | b      | 1       | 0           | 2         |
    | 4    | a      | 2       | 0           | 3         | now a's is 1
    | 5    | c      | 3       | 0           | 4         |
    | 6    | a      | 4       | 1           | 5         | now 3
    | 6    | b      | 5       | 0           | 6         | now 2
    | 8    | a      | 6       | 3           | 7         |
    | 9    | b      | 7       | 2           | 8         |
    """
    strategy = hj.downpour(server="sgd", **BOTH)
    assert tables(strategy) == [{0: 1, 2: 1, 3: 2}, {1: 1, 5: 2}, {3: 1}]


def test_downpour_with_rare_fetches():
    """Every second step: a requests at 4 (version 3) and 8, delivered at 6 and 10.

    Pushes are as above; a's versions are 0, 0, 0, 3 when it pushes, and b's, which
    requests at 6, are 0.
    """
    strategy = hj.downpour(server="sgd", fetch_every=2, **BOTH)
    assert tables(strategy) == [{0: 1, 2: 1, 3: 1, 4: 1}, {1: 1, 5: 1, 7: 1}, {3: 1}]


def test_magma():
    """Staleness in server steps, one per 1.3 s; copies take 1 s, each lock 0.1 s.

    c is the master. a comes first if both arrive at once.

    |   | copied at | step | gradient at | step |
    | a | 1         | 0    | 3.1         | 2    |
    | b | 1         | 0    | 4.2         | 3    | the lock was a's until 1.1
    | a | 4.2       | 3    | 6.3         | 4    |
    | b | 5.4       | 4    | 8.5         | 6    | the lock was a's until 4.3
    | a | 7.4       | 5    | 9.5         | 7    |
    """
    strategy = hj.magma_async_sgd(server_step_seconds=1.3, copy_seconds=1.0, **BOTH)
    expected = [{1: 1, 2: 2}, {2: 1, 3: 1}, {}]
    assert tables(strategy, link=0.2, seconds=9.55) == expected


@pytest.mark.parametrize(
    ("strategy", "merges"),
    [
        # a and b merge at 3, c and then the root at 5; a and b at 8
        (hj.hier_sgd(levels=((2, 1),), local_steps=(1, 1), **BOTH), (2, 2, 1)),
        # a and b merge at 3, 6 and 9 and wait for c's third
        (hj.hier_sgd(levels=((2, 1),), local_steps=(1, 3), **BOTH), (3, 3, 1)),
        (hj.local_sgd(local_steps=1, **BOTH), (1, 1, 1)),
        (hj.biased_local_sgd(local_steps=(2, 1, 1), momentum=0.0, **BOTH), (1, 1, 1)),
    ],
)
def test_a_worker_that_waits_for_all_is_never_stale(strategy, merges):
    assert tables(strategy) == [{0: n} for n in merges]


def test_a_bound_on_staleness():
    """No worker is ahead: a (2), b (3) and c (5) continue at 5 and arrive at 7, 8, 10.

    At 5 all fetch version 3, a and b for the second time; they push to 3, 4 and 5.
    """
    strategy = hj.async_sgd(max_staleness=0, **BOTH)
    history = train(machine(2.0, 3.0, 5.0), strategy, 10.0, num_evals=10)
    expected = [{0: 2}, {1: 2}, {2: 2}]
    assert [w.staleness for w in history.workers] == expected
    assert len(history.merge_times) == history.merges == 6  # fetches do not count
    waiting = [w for _, w, *_ in seconds_of(history)]
    assert waiting == [6.0, 4.0, 0.0]
    assert column(history, "updates") == [0, 0, 1, 2, 2, 3, 3, 4, 5, 5, 6]


def test_a_looser_bound_on_staleness():
    """One step ahead: a computes 0-2-4, waits until c arrives at 5, and computes 5-7.

    At 7 a did 3 steps and c 1, so a waits until 10. b computes 0-3-6 and waits, too.
    """
    strategy = hj.async_sgd(max_staleness=1, **BOTH)
    history = train(machine(2.0, 3.0, 5.0), strategy, 10.0)
    assert [w.updates for w in history.workers] == [3, 3, 2]
    assert [busy for busy, *_ in seconds_of(history)] == [6.0, 9.0, 10.0]
