"""Records of a run on a mesh: all rounds are recorded, done supersteps are freed."""

import weakref

import jax
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.runtimes.mesh.superstep import Superstep


def test_supersteps_that_are_done_are_freed(monkeypatch):
    alive, counts, init = weakref.WeakSet(), [], Superstep.__init__

    def counted(superstep, *arguments):
        init(superstep, *arguments)
        alive.add(superstep)

    monkeypatch.setattr(Superstep, "__init__", counted)
    machine = hj.local_machine(
        jax.devices("cpu")[:2], placement="mesh", step_mode="fused"
    )
    hj.train(
        TASK,
        DATA,
        machine,
        hj.local_sgd(batch_size=4, learning_rate=0.05, local_steps=2),
        seconds=60.0,
        num_evals=1200,
        epochs=100 * 4 * 4 / len(DATA.train) + 1,
        on_eval=lambda point: counts.append((point["updates"], len(alive))),
        progress=False,
    )
    updates, supersteps = zip(*counts, strict=True)
    assert updates[-1] > 100 * 4
    assert max(supersteps) < 50, counts


def test_the_rest_of_a_superstep_is_merging():
    """Even for a merge that need not block: on a mesh, the next round follows it."""
    machine = hj.local_machine(
        jax.devices("cpu")[:2], placement="mesh", step_mode="fused"
    )
    strategy = hj.sma(batch_size=4, learning_rate=0.05)
    history = hj.train(TASK, DATA, machine, strategy, seconds=0.2, progress=False)
    assert history.estimates_busy
    for worker in history.workers:
        assert worker.merging > 0
        assert worker.merging > worker.waiting
        total = worker.busy + worker.merging + worker.waiting
        assert abs(total - history.duration) < 1e-6
