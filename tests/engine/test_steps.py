"""The batches of a local round's steps."""

import chex
import numpy as np
import pytest
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.data.batching import make_batch
from hetjax.engine import step_runner
from hetjax.engine.step_runner import StepRunner, StepSettings
from hetjax.machine import preset


@pytest.mark.parametrize("at_once", [1, 300, 2**20])
@pytest.mark.parametrize("exact", [False, True])
def test_batches_gathered_at_once_equal_those_of_each_step(at_once, exact, monkeypatch):
    """One, three or all seven batches of 4 x 6 floats; padded if that is allowed."""
    monkeypatch.setattr(step_runner, "AT_ONCE", at_once)
    strategy = hj.local_sgd(batch_size=7, learning_rate=0.1, local_steps=7)
    job = Session(
        TASK, DATA, preset("v100x4"), RunConfig(seconds=1.0, num_evals=1)
    ).job("local_sgd", strategy, 0)
    rows = list(np.random.default_rng(0).integers(60, size=(7, 4)))
    runner = StepRunner(StepSettings.of(strategy), job)
    runner._exact = exact
    found = list(runner._batches(rows))
    expected = [make_batch(job.train, r, job.buckets, exact=exact) for r in rows]
    chex.assert_trees_all_equal(found, expected)
    assert [b.x.shape for b in found] == [b.x.shape for b in expected]
