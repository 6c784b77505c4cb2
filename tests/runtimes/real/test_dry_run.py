"""Dry runs: every kind of merge that a policy may request is compiled beforehand."""

import pytest
from quick import quick
from real_runs import DATA, TASK, three_workers

import hetjax as hj
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.engine.placement import Placement
from hetjax.machine import MergeOp
from hetjax.runtimes.real import dry_run


@pytest.fixture(scope="module")
def session():
    """A session whose programs all tests share."""
    return Session(TASK, DATA, three_workers(), RunConfig(seconds=1.0, num_evals=1))


@pytest.mark.parametrize(
    "name", quick(hj.STRATEGIES, "adaptive_sgd", "easgd", "hier_sgd", "magma_async_sgd")
)
def test_every_kind_of_merge_compiles_on_its_own(name, session, monkeypatch):
    """Several speeds of the workers give several orders of arrival."""
    monkeypatch.setattr(dry_run, "MAX_ENTRIES", 1500)
    more = {"mega_batch": 20} if name == "adaptive_sgd" else {}
    strategy = hj.STRATEGIES[name](batch_size=4, learning_rate=0.05, **more)
    job = session.job(name, strategy, 0)
    devices = [w.device for w in session.machine.workers]
    for more in range(6):
        costs = {
            w.name: (1e-4 * (1 + more * (k + 1) / 10), 1e-5)
            for k, w in enumerate(session.machine.workers)
        }
        infos = session.machine.infos(costs)
        found = dry_run.dry_run(
            strategy, infos, (), num_examples=len(DATA.train), seconds=1.0
        )
        assert found.merges
        dry_run.compile_merges(
            strategy, job, infos, Placement(devices, devices[0], timed=True), found
        )


def test_merges_of_an_evaluation_are_among_them(session):
    """MagmaDNN's master merges its steps before an evaluation."""
    strategy = hj.magma_async_sgd(batch_size=4, learning_rate=0.05)
    infos = session.machine.infos(
        {w.name: (1e-4, 1e-5) for w in session.machine.workers}
    )
    found = dry_run.dry_run(
        strategy, infos, (), num_examples=len(DATA.train), seconds=0.1
    )
    assert any(merge.action.op == MergeOp.STEP for merge in found.merges.values())
