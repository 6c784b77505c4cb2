"""Runs of `n` supersteps on a mesh, with scripted time."""

import dataclasses

import jax
import numpy as np
import pytest
from real_runs import DATA, TASK

from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.machine import Cost, Link, Machine, Profile, WorkerInfo
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.open_mesh import mesh_runtime

WORKERS = 8
LAYOUTS = {"8 x 1": (8, 1), "4 x 2": (4, 2), "2 x 4": (2, 4), "1 x 8": (1, 8)}
# programs of several workers per device take XLA seconds each
ON_ALL = [
    name if per_device == 1 else pytest.param(name, marks=pytest.mark.full)
    for name, (_, per_device) in LAYOUTS.items()
]


def layout(name):
    devices, per_device = LAYOUTS[name]
    return MeshLayout(tuple(jax.devices("cpu")[:devices]), per_device)


@dataclasses.dataclass
class MeshMachine:
    """A machine that runs on a mesh, where a step takes a second."""

    where: MeshLayout
    step_mode: str = "fused"
    per_launch: int = 1
    real = True

    def open_runtime(self, strategy, job):
        infos = tuple(
            WorkerInfo(k, f"w{k}", "cpu", (), 1.0, 0.0)
            for k in range(self.where.num_workers)
        )
        runtime = mesh_runtime(self.where, strategy, job, infos, self.step_mode)
        clock, programs = runtime.clock, runtime.player._supersteps.in_flight

        def now():
            return clock.time_map.end

        def on_done(supersteps, done, message):
            done = now() + sum(s.max_steps for s in supersteps)
            clock.finish_launch(supersteps, done, message)

        programs.on_done = on_done
        programs.seconds = clock.seconds = now
        clock.per_launch = self.per_launch
        clock._choose_per_launch = lambda seconds: self.per_launch
        self.runtime = runtime
        return runtime


def simulated_machine(workers=WORKERS, seconds=1.0):
    """Equal workers on the virtual clock, where every step takes a second."""
    profiles = tuple(
        Profile(f"w{k}", "cpu", Cost(seconds, 0.0)) for k in range(workers)
    )
    return Machine("equal", profiles, {"": Link(latency=0.0, bandwidth=1e30)})


def run(machine, strategy, seconds, *, task=TASK, data=DATA, num_evals=1, **options):
    """A run as `hj.train` does it."""
    settings = {
        k: options.pop(k) for k in ("on_nan", "epochs", "target") if k in options
    }
    session = Session(
        task, data, machine, RunConfig(seconds=seconds, num_evals=num_evals, **settings)
    )
    bar = ProgressBar(seconds, shown=False)
    return session.run(strategy.name, strategy, 0, bar, **options)


def on_mesh(
    strategy, where, supersteps, steps=1, *, step_mode="fused", per_launch=1, **options
):
    """The history of n `supersteps`, of `steps` steps each, on a mesh."""
    machine = MeshMachine(layout(where), step_mode, per_launch)
    history = run(machine, strategy, (supersteps + 0.5) * steps, **options)
    history.machine = machine
    return history


def simulated(strategy, supersteps, steps=1, **options):
    """The history of as many rounds on the virtual clock, of `steps` steps each."""
    return run(simulated_machine(), strategy, (supersteps + 0.5) * steps, **options)


def close(actual, expected, tolerance=0.0):
    """Equal leaf by leaf, or within a tolerance."""
    leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for a, b in leaves:
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=0, atol=tolerance
        )
