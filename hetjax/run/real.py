"""A run on real devices: what is measured and compiled before its clock starts."""

from statistics import median
from typing import NamedTuple

from hetjax.machine import WallClock
from hetjax.run.compilations import Compilations
from hetjax.run.executor import Executor
from hetjax.run.holdings import Places
from hetjax.run.job import Job
from hetjax.run.local import LocalMachine
from hetjax.run.measuring import StepTimer
from hetjax.run.steps import Steps
from hetjax.run.threads import Station, Threads
from hetjax.strategies.types import Strategy


class Prepared(NamedTuple):
    """What a real run begins with."""

    job: Job
    clock: WallClock
    forms: dict[str, str]  # by kind of device
    nodes: int  # the worker on whose device merges run


def prepare(machine: LocalMachine, strategy: Strategy, job: Job) -> Prepared:
    """Measure the workers, compile their programs, and set up clock and executor."""
    compilations = Compilations()
    timer = StepTimer(strategy, job, compilations)
    costs = measured_costs(machine, timer, strategy.b_max)
    infos = machine.infos(costs)
    forms = {kind: machine.form or "dispatch" for kind in {i.kind for i in infos}}
    fastest = min(infos, key=lambda info: info.seconds(strategy.b_max)).index
    places = Places(
        [w.device for w in machine.workers], machine.workers[fastest].device
    )
    executors: list[Threads] = []
    clock = WallClock(
        infos,
        incidents=machine.incidents,
        on_slow=lambda worker, factor: executors[0].slow(worker, factor),
        is_excused=lambda worker: executors[0].is_compiling(worker),
    )

    def executor(steps: Steps) -> Executor:
        stations = [
            Station(w.name, w.device, w.slowdown, forms[w.kind])
            for w in machine.workers
        ]
        executors.append(Threads(steps, stations, clock.completed))
        return executors[0]

    job = job._replace(executor=executor, places=places)
    return Prepared(job, clock, forms, fastest)


def measured_costs(
    machine: LocalMachine, timer: StepTimer, b_max: int
) -> dict[str, tuple[float, float]]:
    """(fixed, per example) seconds of a step by worker, from two batch sizes."""
    small = max(1, b_max // 4)
    by_device = {}
    for device in machine.devices:
        large = median(timer.seconds(device, b_max))
        if small == b_max:
            by_device[device] = (0.0, large / b_max)
            continue
        slope = (large - median(timer.seconds(device, small))) / (b_max - small)
        slope = min(max(slope, 0.0), large / b_max)  # noise: neither part is below 0
        by_device[device] = (large - slope * b_max, slope)
    return {w.name: by_device[w.device] for w in machine.workers}
