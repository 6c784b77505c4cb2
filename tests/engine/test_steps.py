"""The batches of a local round's steps, and the programs that run them."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.data.batching import make_batch
from hetjax.engine import batch_feeds
from hetjax.engine.batch_feeds import DeviceFeed, HostFeed
from hetjax.engine.device_data import rows_on
from hetjax.engine.player_parts import Assignment
from hetjax.engine.step_runner import StepRunner, StepSettings
from hetjax.machine import preset

STRATEGY = hj.local_sgd(batch_size=7, learning_rate=0.1, local_steps=7)


def job_of(**settings):
    config = RunConfig(seconds=1.0, num_evals=1, **settings)
    return Session(TASK, DATA, preset("v100x4"), config).job("local_sgd", STRATEGY, 0)


def rows_of(steps, size=4, seed=0):
    return list(np.random.default_rng(seed).integers(60, size=(steps, size)))


@pytest.mark.parametrize("at_once", [1, 300, 2**20])
@pytest.mark.parametrize("exact", [False, True])
def test_batches_gathered_at_once_equal_those_of_each_step(at_once, exact, monkeypatch):
    """One, three or all seven batches of 4 x 6 floats; padded if that is allowed."""
    monkeypatch.setattr(batch_feeds, "AT_ONCE", at_once)
    job, rows = job_of(), rows_of(7)
    feed = HostFeed(job)
    feed._exact = exact
    found = [fed.data for fed in feed.one_by_one(rows)]
    expected = [make_batch(job.train, r, job.buckets, exact=exact) for r in rows]
    chex.assert_trees_all_equal(found, expected)
    assert [b.x.shape for b in found] == [b.x.shape for b in expected]
    chex.assert_trees_all_equal([feed.one(r).data for r in rows], expected)
    device = jax.devices()[1]
    sent = HostFeed(job, device)
    sent._exact = exact
    found = [fed.data for fed in sent.one_by_one(rows)]
    chex.assert_trees_all_equal(found, expected)
    assert {x.device for b in found for x in (b.weight, b.count)} == {device}


def outcome_of(job, feed, how, steps, size=4):
    """The result of a round from the initial model, with this feed."""
    settings = StepSettings.of(STRATEGY)
    runner = StepRunner(settings, job)
    device = jax.devices()[0]
    if feed is not None:
        runner._feeds[device] = feed
    model = job.programs.init(jax.random.key(0))
    begin = job.programs.replica(settings.local_update, settings.buffers)
    group = [
        Assignment(k, begin(*model), rows_of(steps, size, k), np.float32(0.1), 3)
        for k in range(2)
    ]
    if how == "vmapped":
        return [o.wait() for o in runner.vmapped(group, device)]
    return [runner.run(a, how, device).wait() for a in group]


@pytest.mark.parametrize("size", [4, 7])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("how", ["dispatch", "fused", "unrolled", "vmapped"])
def test_data_on_the_device_give_the_same_rounds(how, steps, size):
    """A program that gathers its batches, with padding (4 of 7) and without."""
    job = job_of(on_nan="reset")
    feed = DeviceFeed(job, rows_on(job, jax.devices()[0]))
    expected = outcome_of(job, None, "dispatch", steps, size)
    for mine, other in zip(
        outcome_of(job, feed, how, steps, size), expected, strict=True
    ):
        assert mine.padded == other.padded
        assert mine.finite is other.finite is True
        chex.assert_trees_all_close(mine.replica, other.replica, atol=1e-6)
        chex.assert_trees_all_close(mine.mean, other.mean, atol=1e-6)


@pytest.mark.parametrize("row", [-1, 60])
def test_a_row_that_the_split_does_not_have_is_refused(row):
    """A program would take another one in its place."""
    job = job_of()
    feed = DeviceFeed(job, rows_on(job, jax.devices()[0]))
    with pytest.raises(IndexError, match=f"the sampler drew the row {row} of .* 60"):
        feed.together([np.array([0, row])])


@pytest.mark.parametrize("how", ["dispatch", "fused", "vmapped"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_replica_that_is_not_finite_is_noticed(how, steps):
    """The data of one worker's rows are infinite."""
    job = job_of(on_nan="reset")
    x = np.array(job.train.x)
    x[rows_of(steps, seed=1)[-1][0]] = np.inf
    bad = job._replace(train=dataclasses.replace(job.train, x=x))
    first, second = outcome_of(bad, None, how, steps)
    shared = set(np.ravel(rows_of(steps))) & {rows_of(steps, seed=1)[-1][0]}
    assert first.finite is (not shared)
    assert second.finite is False
