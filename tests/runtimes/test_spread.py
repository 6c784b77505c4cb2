"""Simulated workers on several devices: placement and concurrent compilation."""

import threading
from typing import NamedTuple

import jax
import numpy as np
import pytest
from real_runs import DATA, TASK
from tiny_runs import nothing_compiled

import hetjax as hj
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.engine.player_parts import Assignment
from hetjax.engine.step_runner import RoundOutcome, StepRunner
from hetjax.machine import preset
from hetjax.runtimes import devices, simulated
from hetjax.runtimes.devices import simulation_devices
from hetjax.runtimes.inline import InlineExecutor, SpreadExecutor
from hetjax.runtimes.openers import open_runtime

# Which devices are used


class Fake(NamedTuple):
    """The attributes of a JAX device that are read."""

    device_kind: str
    id: int
    platform: str = "gpu"


@pytest.fixture
def host(monkeypatch):
    """Two GPUs of one kind, one of another, and two CPU devices."""
    gpus = [Fake("A", 0), Fake("A", 1), Fake("B", 2)]
    cpus = [Fake("cpu", 0, "cpu"), Fake("cpu", 1, "cpu")]
    monkeypatch.setattr(devices, "all_devices", lambda: [*gpus, *cpus])
    monkeypatch.setattr(devices, "default_device", lambda: gpus[0])
    monkeypatch.setattr(jax, "local_devices", lambda: gpus)
    return gpus, cpus


def test_by_default_all_accelerators_of_one_kind(host):
    gpus, _ = host
    assert simulation_devices(None) == (*gpus[:2],)


def test_a_default_device_that_the_user_chose_is_used_alone(host):
    gpus, _ = host
    with jax.default_device(jax.devices("cpu")[0]):
        assert simulation_devices(None) == (gpus[0],)


def test_by_default_one_cpu_device(cpu_alone):
    """The tests have eight, which share the cores."""
    assert simulation_devices(None) == (jax.devices()[0],)
    with jax.default_device(jax.devices()[2]):
        assert simulation_devices(None) == (jax.devices()[2],)


def test_named_devices_in_their_order(host):
    gpus, cpus = host
    assert simulation_devices("cpu") == (*cpus,)
    assert simulation_devices(["gpu:1", gpus[0]]) == (gpus[1], gpus[0])


def test_devices_of_several_kinds(host):
    message = r"devices='cuda' are of the kinds A and B: all devices must be of one"
    with pytest.raises(ValueError, match=message):
        simulation_devices("cuda")


ERRORS = [
    (["cpu:9"], "there is no device 'cpu:9'; there are: .*cpu:0, cpu:1"),
    (["cpu:0", 3], "there is no device 3; there are: .*cpu:0, cpu:1"),
    (["cpu:0", "cpu"], "pass every device once"),
    ([], r"devices=\[\]: pass at least one device, or None"),
    (3, "devices=3: pass a list of devices, or their names"),
]
RUN = {"seconds": 0.1, "num_evals": 2, "progress": False}
SETTINGS = {"batch_size": 8, "learning_rate": 0.1}


@pytest.mark.parametrize(("chosen", "message"), ERRORS)
def test_invalid_devices(chosen, message):
    sma = hj.sma(**SETTINGS)
    common = TASK, DATA, preset("v100x4")
    with nothing_compiled(), pytest.raises(ValueError, match=message):
        hj.train(*common, sma, devices=chosen, **RUN)
    with nothing_compiled(), pytest.raises(ValueError, match=message):
        hj.compare(*common, {"sma": sma}, devices=chosen, **RUN)


def test_real_workers_are_not_spread():
    message = r"devices=\['cpu:1'\]: only simulated workers are spread over devices"
    machine, sma = hj.local_machine(["cpu:0"]), hj.sma(**SETTINGS)
    with pytest.raises(ValueError, match=message):
        hj.train(TASK, DATA, machine, sma, devices=["cpu:1"], **RUN)


# Where a run's replicas are


def placed(name, workers=4, devices=None):
    """Where a run with this many equal workers would place their replicas."""
    strategy, machine = hj.STRATEGIES[name](**SETTINGS), preset(f"uniform:{workers}")
    session = Session(
        TASK, DATA, machine, RunConfig(seconds=0.1, num_evals=2, devices=devices)
    )
    runtime = open_runtime(machine, strategy, session.job(name, strategy, 0))
    runtime.player.close()
    return runtime.notes["placement"]


@pytest.fixture
def accelerators(monkeypatch):
    """Three devices that are used by default, as several GPUs are."""
    real = simulated.simulation_devices
    monkeypatch.setattr(
        simulated,
        "simulation_devices",
        lambda chosen: real(["cpu:0", "cpu:1", "cpu:2"] if chosen is None else chosen),
    )


def test_the_default_on_several_accelerators(accelerators):
    assert placed("elastic_sgd") == "on cpu:0, cpu:1, cpu:2"
    assert placed("elastic_sgd", workers=2) == "on cpu:0, cpu:1"
    # a single worker computes: more devices would only add moves
    assert placed("sequential_sgd") == "on cpu:0"
    assert placed("sequential_sgd", devices=["cpu:1", "cpu:2"]) == "on cpu:1, cpu:2"


def test_workers_get_devices_in_turn(monkeypatch, cpu_alone):
    """Their replicas are there in all rounds, so they move back after merges."""
    ran, run = [], StepRunner.run

    def watched(steps, a, step_mode, device):
        (leaf, *_) = jax.tree.leaves(a.replica)
        ran.append((a.worker, device, *leaf.devices()))
        return run(steps, a, step_mode, device)

    monkeypatch.setattr(StepRunner, "run", watched)
    strategy, machine = hj.elastic_sgd(**SETTINGS), preset("uniform:5")
    devices = ["cpu:4", "cpu:2"]
    history = hj.train(TASK, DATA, machine, strategy, devices=devices, **RUN)
    four, two = jax.devices()[4], jax.devices()[2]
    expected = {0: four, 1: two, 2: four, 3: two, 4: four}
    assert len(ran) > 2 * len(expected)
    assert set(ran) == {(k, device, device) for k, device in expected.items()}
    (leaf, *_) = jax.tree.leaves(history.params)
    assert leaf.devices() == {four}  # merges run on the first one


# The executor


def assignment(worker, size=2):
    rows = [np.zeros(size, np.int64)] * 2 if size else []
    return Assignment(worker, np.float32(worker), rows, np.float32(0.1), 0)


def spread(run):
    """An executor of six workers on three devices, "a", "b" and "c"."""
    return SpreadExecutor(run, ["a", "b", "c"] * 2, InlineExecutor(run))


def with_thread(a):
    return RoundOutcome(a.replica, [], np.zeros(()), threading.get_ident())


def threads_of(executor, *local_rounds):
    """The threads that run these assignments, one after the other."""
    found = []
    for a in local_rounds:
        executor.start(a)
        found.append(executor.finish(a.worker).padded)
    executor.close()
    return found


def test_the_first_round_of_a_shape_on_other_devices_has_a_thread():
    here = threading.get_ident()
    rounds = [assignment(k) for k in range(6)]
    found = threads_of(spread(with_thread), *rounds)
    assert [thread == here for thread in found] == [True, False, False, *[True] * 3]
    assert len(set(found)) == 3


def test_another_shape_is_compiled_again():
    here = threading.get_ident()
    rounds = [assignment(k, size) for size in (2, 3, 0) for k in (0, 1)]
    found = threads_of(spread(with_thread), *rounds)
    assert [t == here for t in found] == [True, False, True, False, True, True]


def test_devices_compile_at_the_same_time():
    """The rounds of b and c wait for each other; another one of b waits for the first.

    Worker 4 could not run here: the caller would wait for b's compiler.
    """
    both, ran = threading.Barrier(2, timeout=10), []

    def run(a):
        if a.worker in (1, 2):
            both.wait()
        ran.append(a.worker)
        return with_thread(a)

    executor = spread(run)
    for worker in (0, 1, 4, 2):
        executor.start(assignment(worker))
    outcomes = {k: executor.finish(k) for k in (4, 2, 1, 0)}
    executor.close()
    assert [outcomes[k].replica for k in range(5) if k != 3] == [0, 1, 2, 4]
    assert outcomes[4].padded == outcomes[1].padded
    assert ran.index(1) < ran.index(4)


def test_an_error_of_a_device_is_raised_where_its_outcome_is_fetched():
    def run(a):
        if a.worker:
            raise ZeroDivisionError
        return with_thread(a)

    executor = spread(run)
    for worker in (0, 1):
        executor.start(assignment(worker))
    with pytest.raises(ZeroDivisionError):
        executor.finish(1)
    assert executor.finish(0).replica == 0
    executor.close()


def test_a_dropped_round_does_not_block_the_next_one():
    executor = spread(with_thread)
    for worker in (0, 1, 2):
        executor.start(assignment(worker))
        executor.discard(worker)
        executor.start(assignment(worker))
    assert [executor.finish(k).replica for k in (2, 1, 0)] == [2, 1, 0]
    executor.close()
