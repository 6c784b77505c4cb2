"""Rehearsals: every kind of merge that a policy may order is compiled beforehand."""

import pytest
from real_runs import DATA, TASK, three_workers

import hetjax as hj
from hetjax.run import rehearsal
from hetjax.run.bench import Bench
from hetjax.run.holdings import Places


@pytest.fixture(scope="module")
def bench():
    """Whose programs all share."""
    return Bench(TASK, DATA, three_workers(), seconds=1.0, points=1)


@pytest.mark.parametrize("name", hj.STRATEGIES)
def test_one_merge_of_each_kind_by_itself(name, bench, monkeypatch):
    """Whoever comes first, in whatever order: each speed has its own noise."""
    monkeypatch.setattr(rehearsal, "EVENTS", 300)
    size = {"b_max": 4, "mega_batch": 20} if name == "adaptive_sgd" else {}
    strategy = hj.STRATEGIES[name](rate=0.05, **(size or {"batch_size": 4}))
    job = bench.job(strategy, 0)
    devices = [w.device for w in bench.machine.workers]
    for more in range(6):
        costs = {
            w.name: (1e-4 * (1 + more * (k + 1) / 10), 1e-5)
            for k, w in enumerate(bench.machine.workers)
        }
        infos = bench.machine.infos(costs)
        found = rehearsal.rehearse(
            strategy, infos, (), num_examples=len(DATA.train), seconds=1.0
        )
        assert found.merges
        rehearsal.compile_merges(
            strategy, job, infos, Places(devices, devices[0]), found
        )
