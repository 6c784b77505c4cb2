"""The batches of an assignment's steps."""

import chex
import numpy as np
import pytest
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.data.batching import make_batch
from hetjax.machine import preset
from hetjax.run import steps
from hetjax.run.bench import Bench
from hetjax.run.compilations import Compilations
from hetjax.run.steps import Steps


@pytest.mark.parametrize("at_once", [1, 300, 2**20])
@pytest.mark.parametrize("exact", [False, True])
def test_batches_that_are_gathered_at_once_are_those_of_each_step(
    at_once, exact, monkeypatch
):
    """One, three or all seven of 4 x 6 floats; padded, where that is allowed."""
    monkeypatch.setattr(steps, "AT_ONCE", at_once)
    strategy = hj.local_sgd(batch_size=7, rate=0.1, steps=7)
    job = Bench(TASK, DATA, preset("v100x4"), seconds=1.0, points=1).job(strategy, 0)
    rows = list(np.random.default_rng(0).integers(60, size=(7, 4)))
    found = list(Steps(strategy, job, Compilations(), exact=exact)._batches(rows))
    expected = [make_batch(job.train, r, job.buckets, exact=exact) for r in rows]
    chex.assert_trees_all_equal(found, expected)
    assert [b.x.shape for b in found] == [b.x.shape for b in expected]
