"""The step mode of a mesh: candidates, choice, and the cache of measurements."""

import jax
import pytest
from real_runs import DATA, TASK

import hetjax as hj
from hetjax.runtimes.mesh import open_mesh

STRATEGY = hj.local_sgd(batch_size=4, learning_rate=0.05, local_steps=2)


def train(**options):
    machine = hj.local_machine(
        jax.devices("cpu")[:2], workers_per_device=2, placement="mesh"
    )
    options = {"seconds": 0.05, "num_evals": 1, "progress": False} | options
    return hj.train(TASK, DATA, machine, STRATEGY, **options)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The modes that were measured, with scripted seconds `measured.of`."""

    class Modes(list):
        of = None

    modes, inner = Modes(), open_mesh._time_supersteps
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path))

    def seconds(supersteps, job, rows):
        modes.append(supersteps._step_mode)
        if modes.of is not None:
            return [modes.of[supersteps._step_mode]]
        return inner(supersteps, job, rows)

    monkeypatch.setattr(open_mesh, "_time_supersteps", seconds)
    monkeypatch.setattr(open_mesh, "SECONDS", 0.0)
    return modes


@pytest.mark.parametrize(
    ("max_steps", "workers_per_device", "of_table", "small", "expected"),
    [
        (1, 1, "fused", True, ["unrolled"]),
        (8, 1, "fused", True, ["fused", "unrolled"]),
        (8, 8, "fused", True, ["fused", "unrolled", "vmapped"]),
        (8, 9, "fused", True, ["fused", "vmapped"]),  # too many to unroll
        (17, 1, "fused", True, ["fused"]),
        (1, 2, "fused", True, ["unrolled", "vmapped"]),
        (1, 100, "fused", True, ["vmapped"]),
        (8, 8, "unrolled", True, ["unrolled", "dispatch"]),  # never a loop
        (8, 9, "unrolled", True, ["dispatch"]),
        (1, 1, "unrolled", True, ["unrolled"]),
        (1, 100, "unrolled", True, ["dispatch"]),
        (8, 8, "fused", False, ["fused", "vmapped"]),
        (1, 1, "fused", False, ["fused"]),
        (8, 8, "dispatch", False, ["dispatch"]),  # too large to unroll
    ],
)
def test_candidates(max_steps, workers_per_device, of_table, small, expected):
    found = open_mesh.candidates(max_steps, workers_per_device, of_table, small)
    assert found == expected


@pytest.mark.full
def test_modes_are_measured_once_and_cached(measured):
    first = train()
    assert measured == open_mesh.PASSES * ["fused", "unrolled", "vmapped"]
    again = train()
    assert len(measured) == 3 * open_mesh.PASSES
    assert again.step_modes == first.step_modes


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"fused": 2.0, "unrolled": 1.5, "vmapped": 1.0}, "vmapped"),
        ({"fused": 2.0, "unrolled": 1.5, "vmapped": 3.0}, "unrolled"),
        ({"fused": 1.0, "unrolled": 0.99, "vmapped": 3.0}, "fused"),  # hardly faster
    ],
)
def test_the_fastest_mode_is_chosen(measured, seconds, expected):
    measured.of = seconds
    assert train().step_modes == {"cpu": expected}


def test_no_measurement_if_the_mode_is_given(measured):
    machine = hj.local_machine(
        jax.devices("cpu")[:2], placement="mesh", step_mode="unrolled"
    )
    options = {"seconds": 0.05, "num_evals": 1, "progress": False}
    history = hj.train(TASK, DATA, machine, STRATEGY, **options)
    assert history.step_modes == {"cpu": "unrolled"}
    assert measured == []
