"""Runs on a CUDA device, and on CPU devices beside it, in one process.

    JAX_PLATFORMS=cuda,cpu python -m pytest tests/runtimes/test_cuda.py

Without a CUDA device all of them are skipped. Matrix products have the precision of
float32 here, not TensorFloat-32 (JAX's default there), so that devices can be compared.
"""

import json
import os
from pathlib import Path

import cuda_cases as cases
import jax
import numpy as np
import pytest
from cuda_cases import COMMON, DENSE
from mesh_runs import MeshMachine, simulated_machine
from mesh_runs import run as run_supersteps
from real_runs import own_threads, poisoned_task
from script_json import printed_by

import hetjax as hj
from hetjax.engine.step_runner import STEP_MODES
from hetjax.runtimes.devices import all_devices, device_name
from hetjax.runtimes.mesh.mesh_layout import MeshLayout

TESTS = Path(__file__).parents[1]
# of devices whose products and sums have other orders, after some 20 steps
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def gpu():
    try:
        return jax.devices("cuda")[0]
    except RuntimeError as error:
        pytest.skip(f"no CUDA device, or JAX_PLATFORMS is not cuda,cpu: {error}")


@pytest.fixture(autouse=True, scope="module")
def _float32(gpu):
    before = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", "highest")
    yield
    jax.config.update("jax_default_matmul_precision", before)


def beside_cpu(gpu, **settings):
    """Two workers on a CPU device and two on the GPU."""
    settings = {"workers_per_device": 2, **settings}
    return hj.local_machine(["cpu:0", device_name(gpu)], **settings)


def on_gpu(gpu, workers, **settings):
    """So many workers on the GPU."""
    name = device_name(gpu)
    return hj.local_machine([name], workers_per_device=workers, **settings)


def without_gpu(history):
    """The same run, event by event, with all workers on a CPU device."""
    trace = history.trace.load()
    for worker in trace.header["workers"]:
        worker["kind"] = "cpu"
    trace.header["step_modes"] = {"cpu": "dispatch"}
    task, data, chosen = history.trace.context
    return hj.replay(trace, task, data, chosen, progress=False)


def assert_close(actual, expected, tolerance=ROUNDING):
    leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for a, e in leaves:
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), atol=tolerance)


def test_accelerators_come_first(gpu):
    assert all_devices()[0] == gpu
    assert device_name(gpu) == "gpu:0"
    workers = hj.local_machine(["cpu:0", "cuda:0"]).workers
    assert [w.device_name for w in workers] == ["cpu:0", "gpu:0"]
    assert workers[0].kind != workers[1].kind


SETTINGS = {
    "sync_sgd": {"server_momentum": 0.5},
    "local_sgd": {"local_steps": 3, "momentum": 0.5},
    "sma": {"local_steps": 2, "momentum": 0.5},
    "hier_sgd": {"levels": (2,), "local_steps": (1, 2)},
    "adaptive_sgd": {"mega_batch": 20, "beta": 1.0},
    "async_sgd": {},
    "easgd": {"local_steps": 2},
    "ad_psgd": {},
}


def strategy(name):
    return hj.STRATEGIES[name](**COMMON, **SETTINGS[name])


@pytest.mark.parametrize("name", SETTINGS)
def test_workers_on_a_cpu_and_a_gpu(gpu, name):
    history = cases.real(beside_cpu(gpu), strategy(name))
    assert "as asked" in history.stopped
    assert not history.events
    assert history.merges > 3
    assert all(worker.updates > 0 for worker in history.workers)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(history.params))
    for w in history.workers:
        kinds = (w.busy, w.waiting, w.merging, w.transfer, w.idle)
        assert sum(kinds) == pytest.approx(history.duration, abs=1e-6)
        assert min(kinds) >= 0
    assert not own_threads()
    assert_close(without_gpu(history).params, history.params)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_virtual_clock_on_a_gpu(gpu, name):
    """Twice the same bits, and those of a CPU up to rounding."""
    chosen, device = strategy(name), device_name(gpu)
    once, again = (cases.simulated(chosen, device) for _ in range(2))
    for a, b in zip(*map(jax.tree.leaves, (once.params, again.params)), strict=True):
        assert a.devices() == {gpu}
        np.testing.assert_array_equal(a, b)
    assert once.evals == again.evals
    on_cpu = cases.simulated(chosen, "cpu:0")
    assert once.merge_times == on_cpu.merge_times
    assert_close(once.params, on_cpu.params)


def test_sparse_data(gpu):
    problem, chosen = cases.sparse(), strategy("adaptive_sgd")
    history = cases.real(beside_cpu(gpu), chosen, problem)
    assert all(worker.updates > 0 for worker in history.workers)
    assert_close(without_gpu(history).params, history.params)
    both = (
        cases.simulated(chosen, device, problem).params
        for device in (device_name(gpu), "cpu:0")
    )
    assert_close(*both)


def test_a_model_with_convolutions_and_statistics(gpu):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 8, 8, 3)).astype(np.float32)
    y = rng.integers(4, size=64)
    data = hj.data.from_arrays((x, y), (x[:20], y[:20]), num_classes=4)
    problem = cases.Problem(
        hj.classification(hj.models.resnet(depth=8, image=(8, 8, 3), width=4), data),
        data,
    )
    chosen = hj.elastic_sgd(batch_size=8, learning_rate=0.01, local_steps=2)
    machine = beside_cpu(gpu, step_mode="dispatch")
    history = cases.real(machine, chosen, problem)
    assert all(worker.updates > 0 for worker in history.workers)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(history.params))
    both = (
        cases.simulated(chosen, device, problem)
        for device in (device_name(gpu), "cpu:0")
    )
    # normalizing divides by small deviations: rounding grows with every step
    assert_close(*[history.params for history in both], 1e-3)


def test_a_missing_kind_is_replaced_by_the_default_device(gpu):
    """Also where merges ran on it, and the others are of two kinds."""
    devices = ["cpu:0", "cpu:1", device_name(gpu)]
    machine = hj.local_machine(devices, step_mode="dispatch")
    history = cases.real(machine, strategy("local_sgd"))
    trace = history.trace.load()
    trace.header["workers"][1]["kind"] = "another"
    trace.header["nodes"] = 1
    trace.header["step_modes"]["another"] = "dispatch"
    task, data, chosen = history.trace.context
    again = hj.replay(trace, task, data, chosen, progress=False)
    assert_close(again.params, history.params)


@pytest.mark.parametrize("step_mode", STEP_MODES)
def test_step_modes_of_several_workers_on_a_gpu(gpu, step_mode):
    chosen = strategy("local_sgd")
    history = cases.real(on_gpu(gpu, 3, step_mode=step_mode), chosen)
    assert history.step_modes == {gpu.device_kind: step_mode}
    assert all(worker.updates > 0 for worker in history.workers)
    assert_close(without_gpu(history).params, history.params)


def test_the_step_mode_of_each_kind_of_device_is_measured(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path))
    history = cases.real(beside_cpu(gpu), strategy("local_sgd"))
    assert set(history.step_modes) == {"cpu", gpu.device_kind}
    assert set(history.step_modes.values()) <= set(STEP_MODES)
    found = [json.loads(f.read_text()) for f in (tmp_path / "step_modes").iterdir()]
    assert [set(seconds) for seconds in found] == [set(STEP_MODES)] * 2


MESHED = {  # strategy, steps of a superstep
    "sync": (strategy("sync_sgd"), 1),
    "local steps": (hj.local_sgd(**COMMON, local_steps=(4, 2, 1, 4)), 4),
    "sma": (strategy("sma"), 2),
    "tree": (strategy("hier_sgd"), 1),
    "fed_nova": (hj.fed_nova(**COMMON, local_steps=(4, 2, 1, 4), momentum=0.5), 4),
}


@pytest.mark.parametrize("step_mode", STEP_MODES)
@pytest.mark.parametrize("name", MESHED)
def test_a_mesh_of_one_gpu_equals_workers_one_by_one(gpu, name, step_mode):
    chosen, steps = MESHED[name]
    seconds = 5.5 * steps
    machine = MeshMachine(MeshLayout((gpu,), 4), step_mode)
    actual = run_supersteps(machine, chosen, seconds)
    expected = run_supersteps(simulated_machine(4), chosen, seconds)
    assert (actual.stopped, actual.merges) == ("", expected.merges)
    assert_close(actual.params, expected.params)


def test_a_mesh_of_one_gpu_chooses_its_step_mode(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path))
    chosen = strategy("local_sgd")
    mesh = cases.real(on_gpu(gpu, 4, placement="mesh"), chosen)
    assert mesh.placement == "mesh of 1 x 4 workers"
    assert mesh.step_modes.keys() == {gpu.device_kind}
    assert all(worker.updates > 0 for worker in mesh.workers)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(mesh.params))


@pytest.mark.parametrize("placement", ["threads", "mesh"])
def test_a_nan_on_a_gpu_is_kept_out(gpu, placement):
    problem = cases.Problem(poisoned_task(), DENSE.data)
    machine = on_gpu(gpu, 4, placement=placement)
    history = cases.real(machine, strategy("local_sgd"), problem)
    assert {event.what for event in history.events} == {"nan"}
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(history.params))


def test_a_calibrated_cpu_and_gpu(gpu):
    profile = hj.calibrate(
        *DENSE,
        beside_cpu(gpu, workers_per_device=1),
        batch_sizes=(2, 4),
        local_steps=(1, 2),
        repeats=2,
        progress=False,
    )
    assert [w.name for w in profile.workers] == ["cpu:0", "gpu:0"]
    advice = hj.advise(*DENSE, profile, batch_size=4, seconds=0.05, progress=False)
    assert {c.workers for c in advice.choices} == {
        ("cpu:0",),
        ("gpu:0",),
        ("cpu:0", "gpu:0"),
    }


def test_another_process_replays_to_the_bit(gpu, tmp_path):
    """With the flag that the README names; sparse gradients need it."""
    recorded, replayed = (
        _in_process(task, tmp_path, device_name(gpu)) for task in ("record", "replay")
    )
    assert replayed.pop("virtual") == recorded["virtual"]
    assert replayed == dict.fromkeys(cases.RECORDED, "equal")


def _in_process(*arguments):
    """What cuda_process.py prints."""
    paths = [str(TESTS.parent), str(TESTS), *filter(None, [os.getenv("PYTHONPATH")])]
    flags = f"{os.getenv('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
    script = TESTS / "runtimes" / "cuda_process.py"
    return printed_by(
        script, *arguments, PYTHONPATH=os.pathsep.join(paths), XLA_FLAGS=flags
    )
