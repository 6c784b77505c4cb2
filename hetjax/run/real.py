"""A run on real devices: what is measured and compiled before its clock starts."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np

from hetjax.machine import WallClock
from hetjax.run.compilations import Compilations
from hetjax.run.executor import Executor
from hetjax.run.forms import choose_form
from hetjax.run.holdings import Places
from hetjax.run.job import Job
from hetjax.run.local import LocalMachine
from hetjax.run.measuring import StepTimer
from hetjax.run.rehearsal import (
    Rehearsal,
    compile_merges,
    compile_steps,
    rehearse,
)
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
    timer = StepTimer(strategy, job, Compilations())
    costs = measured_costs(machine, timer, strategy.b_max)
    infos = machine.infos(costs)
    fastest = min(infos, key=lambda info: info.seconds(strategy.b_max)).index
    devices = [w.device for w in machine.workers]
    places = Places(devices, devices[fastest])
    test, held = (
        [jax.device_put(batch, places.nodes) for batch in batches]
        for batches in (job.test, job.held_out)
    )
    job = job._replace(places=places, test=test, held_out=held)
    found = rehearse(
        strategy,
        infos,
        machine.incidents,
        num_examples=len(job.train),
        seconds=job.instants[-1],
    )
    forms = chosen_forms(machine, timer, found)
    by_worker = [forms[w.kind] for w in machine.workers]
    compile_steps(timer, job, devices, by_worker, found)
    compile_merges(strategy, job, infos, places, found)
    executors: list[Threads] = []
    clock = WallClock(
        infos,
        incidents=machine.incidents,
        on_slow=lambda worker, factor: executors[0].slow(worker, factor),
        is_excused=lambda worker: executors[0].is_compiling(worker),
    )

    def executor(steps: Steps) -> Executor:
        stations = [
            Station(w.name, w.device, w.slowdown, form)
            for w, form in zip(machine.workers, by_worker, strict=True)
        ]
        executors.append(Threads(steps, stations, clock))
        return executors[0]

    job = job._replace(executor=executor)
    return Prepared(job, clock, forms, fastest)


def chosen_forms(
    machine: LocalMachine, timer: StepTimer, found: Rehearsal
) -> dict[str, str]:
    """How K local steps run on each kind of device, for the work it has most of."""
    forms = {}
    for kind in {w.kind for w in machine.workers}:
        mine = [k for k, w in enumerate(machine.workers) if w.kind == kind]
        shapes = sum((found.shapes[k] for k in mine), Counter())
        learners = most_learners(machine, kind)
        # one step of one worker has one form only
        several = {
            k: n for k, n in shapes.items() if k[0] > 1 or (k[0] and learners > 1)
        }
        if machine.form or not several:
            forms[kind] = machine.form or "dispatch"
            continue
        steps, size = max(several, key=lambda shape: several[shape])
        device = machine.workers[mine[0]].device
        forms[kind], _ = choose_form(timer, device, steps, size, learners)
    return forms


def most_learners(machine: LocalMachine, kind: str) -> int:
    """That share a device of this kind."""
    return max(Counter(w.device for w in machine.workers if w.kind == kind).values())


def measured_costs(
    machine: LocalMachine, timer: StepTimer, b_max: int
) -> dict[str, tuple[float, float]]:
    """(fixed, per example) seconds of a step by worker.

    Each device is measured at `b_max`; how much of that is fixed, a second batch size
    tells of the first device of a kind.
    """
    kinds = {w.kind: w.device for w in reversed(machine.workers)}
    small = max(1, b_max // 4)
    pairs = [(device, b_max) for device in machine.devices]
    if small < b_max:
        pairs += [(device, small) for device in kinds.values()]
    with ThreadPoolExecutor(min(4, len(pairs))) as pool:  # XLA compiles side by side
        list(pool.map(lambda pair: timer.seconds(*pair, samples=1, shortest=0), pairs))
    seconds = {pair: _usual(timer.seconds(*pair)) for pair in pairs}
    fixed = {}
    for kind, device in kinds.items():
        if small == b_max:
            fixed[kind] = 0.0
            continue
        slope = (seconds[device, b_max] - seconds[device, small]) / (b_max - small)
        part = 1 - slope * b_max / seconds[device, b_max]
        fixed[kind] = min(max(part, 0.0), 1.0)  # noise: neither part is below 0
    costs = {}
    for worker in machine.workers:
        total = seconds[worker.device, b_max]
        share = fixed[worker.kind]
        costs[worker.name] = share * total, (1 - share) * total / b_max
    return costs


def _usual(seconds: list[float]) -> float:
    """The first quartile: a busy host makes steps slower, never faster."""
    return float(np.quantile(seconds, 0.25))
