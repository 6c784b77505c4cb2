"""Shards: every worker makes passes over its own rows."""

import numpy as np
import pytest

from hetjax.machine import preset
from hetjax.sampling import sharded, uniform

SHARDS = (np.arange(0, 10), np.array([20, 11, 15]), np.arange(12, 20))
SEEDS = (0, 1, 2)


def start(shards=SHARDS, seed=0, num_examples=30):
    workers = preset("uniform:3").worker_infos(0.0)
    sampler = sharded(shards)
    return sampler, sampler.init(workers, num_examples, seed)


def drawn(sampler, state, worker, counts):
    pieces = []
    for n in counts:
        state, rows = sampler.draw(state, worker, n)
        assert len(rows) == n
        pieces.append(rows)
    return np.concatenate(pieces)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_every_pass_is_over_a_worker_s_own_rows(seed, worker):
    shard = SHARDS[worker]
    rows = drawn(*start(seed=seed), worker, (7, 1, 2 * len(shard)))
    for begin in range(0, len(rows) - len(shard) + 1, len(shard)):
        piece = rows[begin : begin + len(shard)]
        assert sorted(piece) == sorted(shard)


def test_a_worker_does_not_depend_on_the_others():
    sampler, state = start()
    alone = drawn(sampler, state, 1, (2, 2, 2))
    mixed = []
    for worker in (0, 1, 2, 1, 0, 1):
        state, rows = sampler.draw(state, worker, 2)
        if worker == 1:
            mixed.extend(rows)
    assert mixed == alone.tolist()


def test_orders_differ_between_workers_seeds_and_passes():
    same = (np.arange(30),) * 3
    actions = {
        tuple(drawn(*start(same, seed), worker, (30, 30))[begin : begin + 30])
        for seed in SEEDS
        for worker in range(3)
        for begin in (0, 30)
    }
    assert len(actions) == 18


def test_one_seed_one_order():
    first, second = (drawn(*start(), 0, (5, 9)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_partition_function_is_called_once():
    asked = []

    def partition(n, seed):
        asked.append((n, seed))
        return SHARDS

    sampler, state = start(partition, seed=5)
    expected = drawn(*start(seed=5), 2, (9,))
    np.testing.assert_array_equal(drawn(sampler, state, 2, (9,)), expected)
    assert asked == [(3, 5)]


def test_one_worker_with_all_rows_is_the_uniform_sampler():
    workers = preset("v100x1").worker_infos(0.0)
    everything, other = sharded([np.arange(50)]), uniform()
    rows = drawn(everything, everything.init(workers, 50, 3), 0, (70, 30))
    expected = drawn(other, other.init(workers, 50, 3), 0, (70, 30))
    np.testing.assert_array_equal(rows, expected)


def test_share_is_that_of_the_rows():
    sampler, state = start()
    assert sampler.share(state).tolist() == pytest.approx([10 / 21, 3 / 21, 8 / 21])
    assert sampler.observe is None


def test_old_states_stay_usable():
    sampler, state = start()
    later, rows = sampler.draw(state, 0, 7)
    expected = rows.copy()
    rows[:] = -1
    sampler.draw(later, 0, 20)
    np.testing.assert_array_equal(sampler.draw(state, 0, 7)[1], expected)


def test_a_draw_of_no_examples():
    sampler, state = start()
    assert sampler.draw(state, 1, 0)[1].shape == (0,)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (SHARDS[:2], "sharded: 2 shards for 3 workers"),
        ((*SHARDS[:2], np.array([], int)), "worker 2 has no rows"),
        ((*SHARDS[:2], [30]), "worker 2 has rows outside the 30 training examples"),
        ((*SHARDS[:2], [-1]), "worker 2 has rows outside"),
    ],
)
def test_refusals(shards, message):
    with pytest.raises(ValueError, match=message):
        start(shards)
