"""Bytes of merges whose traffic is their own: the seconds and the records follow."""

import dataclasses

import pytest
from tiny_runs import machine, seconds_of, train

import hetjax as hj
from hetjax.machine import Link

MODEL = 4  # [bytes]: one number
# [s] of a merge of one worker's model: 4 / 8 there and 4 / 16 back
LINKS = {"": Link(latency=0.0, bandwidth=8.0, down_bandwidth=16.0)}


@pytest.mark.parametrize(("name", "times"), [("local_sgd", 1), ("scaffold", 2)])
def test_a_merge_of_twice_the_bytes_takes_twice_as_long(name, times):
    """Rounds of a second and merges in turn, until the third merge is done."""
    one = dataclasses.replace(machine(1.0), links=LINKS)
    strategy = hj.STRATEGIES[name](batch_size=2, learning_rate=0.5, local_steps=1)
    history = train(one, strategy, 3 * (1 + times * 0.75) + 0.125)
    ((busy, waiting, merging, idle),) = seconds_of(history)
    assert merging == pytest.approx(3 * times * 0.75)
    assert (busy, waiting, idle) == pytest.approx((3.125, 0, 0))
    (worker,) = history.workers
    assert worker.bytes_sent == worker.bytes_received == 3 * times * MODEL
