"""What a run on a mesh keeps: records of every round, but not the waves themselves."""

import weakref

import jax
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.runtimes.mesh.wave import Wave


def test_waves_that_are_done_are_freed(monkeypatch):
    alive, counts, init = weakref.WeakSet(), [], Wave.__init__

    def counted(wave, *arguments):
        init(wave, *arguments)
        alive.add(wave)

    monkeypatch.setattr(Wave, "__init__", counted)
    machine = hj.local_machine(jax.devices()[:2], placement="mesh", step_mode="fused")
    hj.train(
        TASK,
        DATA,
        machine,
        hj.local_sgd(batch_size=4, learning_rate=0.05, local_steps=2),
        seconds=0.5,
        num_evals=4,
        on_eval=lambda point: counts.append((point["updates"], len(alive))),
        progress=False,
    )
    updates, waves = zip(*counts, strict=True)
    assert updates[-1] > 100 * 4
    assert max(waves) < 50, counts
