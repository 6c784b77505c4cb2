"""Bytes of merges whose traffic is their own: the seconds and the records follow."""

import dataclasses

import pytest
from tiny_runs import machine, seconds_of, train

import hetjax as hj
from hetjax.machine import Link

MODEL = 4  # [bytes]: one number
# a merge of two workers' models takes 2 * 4 / 8 s there and 2 * 4 / 16 s back
LINKS = {"": Link(latency=0.0, bandwidth=8.0, down_bandwidth=16.0, topology="central")}
SECONDS = 1.5


@pytest.mark.parametrize(("name", "times"), [("local_sgd", 1), ("scaffold", 2)])
def test_a_merge_of_twice_the_bytes_takes_twice_as_long(name, times):
    """Rounds of a second and merges in turn, until the third merge is done."""
    two = dataclasses.replace(machine(1.0, 1.0), links=LINKS)
    strategy = hj.STRATEGIES[name](batch_size=2, learning_rate=0.5, local_steps=1)
    history = train(two, strategy, 3 * (1 + times * SECONDS) + 0.125)
    for busy, waiting, merging, idle in seconds_of(history):
        assert merging == pytest.approx(3 * times * SECONDS)
        assert (busy, waiting, idle) == pytest.approx((3.125, 0, 0))
    for worker in history.workers:
        assert worker.bytes_sent == worker.bytes_received == 3 * times * MODEL
