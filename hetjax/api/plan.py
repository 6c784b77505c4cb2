"""`plan`: predict the memory, virtual time and host time of runs before they begin.

Virtual time comes from simulating the policy alone, as in `advise`. A few steps of the
largest batch run on a device of this host; XLA reports how much memory they use.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, NamedTuple

import jax

from hetjax import tree
from hetjax.api.progress import step_bar, takes_bars
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.arguments import Bounds, Positive, checked
from hetjax.data.batching import nonzeros_per_example
from hetjax.data.dataset import Dataset
from hetjax.engine.decisions import decisions
from hetjax.engine.placement import Device
from hetjax.engine.step_runner import StepSettings
from hetjax.engine.traffic import traffic_of_actions
from hetjax.machine import Arrival, Event, Machine, SimulatedClock
from hetjax.report.table import Table, Tabular
from hetjax.runtimes.compiled.player_choice import compiled_bytes
from hetjax.runtimes.devices import device_name, simulation_devices
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.schedule import Actions
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task

EVENTS = 50_000  # of the simulation of a strategy, at most; beyond, it is extrapolated
SILENCE = 10.0  # [s] between two lines of progress, at least
LONGEST = 120.0  # [s] of timed steps of a strategy: fewer steps if they are slow
MEGA, HOUR = 1e6, 3600.0


class PlannedRun(NamedTuple):
    """The predicted cost of all epochs with one strategy."""

    strategy: str
    virtual_seconds: float  # of the machine's clock
    updates: int  # steps of all workers
    replica_bytes: int  # a worker's model, statistics, optimizer and buffers
    step_bytes: int  # of a step: activations, workspace, batch, second replica
    device_bytes: int  # of the device with the most workers
    # of a compiled simulated run, on one device; None: it is not compiled
    compiled_bytes: int | None
    step_seconds: float  # median of `timed` steps on this host's device
    timed: int
    host_seconds: float  # of all steps in sequence on this host's devices


@dataclass(frozen=True, repr=False)
class Plan(Tabular):
    """The predicted cost of each strategy, returned by `plan`."""

    runs: tuple[PlannedRun, ...]
    parameters: int
    num_bytes: int  # of a model that a merge sends
    epochs: float
    batch: str  # size of the timed steps, in words
    machine: str
    device: str  # of this host, on which steps were timed

    def table(self) -> Table:
        """Return the plan as a table."""
        runs = self.runs
        columns = {
            "strategy": [run.strategy for run in runs],
            "virtual hours": [_digits(run.virtual_seconds / HOUR) for run in runs],
            "steps": [f"{run.updates:,}" for run in runs],
            "replica [MB]": [_digits(run.replica_bytes / MEGA) for run in runs],
            "step [MB]": [_digits(run.step_bytes / MEGA) for run in runs],
            "device [MB]": [_digits(run.device_bytes / MEGA) for run in runs],
            "simulated [MB]": [
                "-" if b is None else _digits(b / MEGA)
                for b in (run.compiled_bytes for run in runs)
            ],
            "step here [ms]": [_digits(1e3 * run.step_seconds) for run in runs],
            "hours here": [_digits(run.host_seconds / HOUR) for run in runs],
        }
        timed = sorted({run.timed for run in runs})
        caption = (
            f"{self.parameters:,} parameters, {_digits(self.num_bytes / MEGA)} MB; "
            f"{self.epochs:g} epoch{'s' * (self.epochs != 1)} on {self.machine}",
            f"here: the median of {' or '.join(map(str, timed))} steps of {self.batch} "
            f"on {self.device}, times all steps of all workers; without evaluations",
            "memory is XLA's for this host's kind of device; a device holds a replica "
            "and a step for each of its workers, and merges need two to four models "
            "more",
            "simulated: what a compiled run of all workers holds on one device of this "
            "host, with its data; - where the reference player plays it",
        )
        return Table.of(columns, caption)


@checked
def plan(
    task: Task,
    data: Dataset,
    machine: Machine,
    strategies: Mapping[str, Strategy],
    *,
    epochs: Positive,
    steps: Annotated[int, Bounds(low=3)] = 10,
    devices: Sequence[Device | str] | None = None,
    progress: bool = True,
) -> Plan:
    """Predict memory and time of strategies for `epochs` passes over the data.

    Virtual seconds come from the simulated `machine` and the strategy's policy alone;
    a run of more than 50,000 events is extrapolated from the second half of these. This
    host's seconds come from `steps` timed steps of the largest batch (fewer, but at
    least 3, if they take more than two minutes) on one of `devices`, over all of which
    the workers' steps would be spread (see `train`); strategies whose batches shrink
    take less. Bytes of a step are those of its batch, those that XLA reserves for its
    program, and those of a second replica if merges may read one while it computes.

    Only shapes and sizes of the data matter. An epoch is N examples of all workers
    together. `progress` is shown on standard error. Errors: a ValueError that names the
    argument.
    """
    # seconds and evaluations do not matter: no run is made
    config = RunConfig(seconds=1.0, num_evals=1, epochs=epochs, devices=devices)
    session = Session(task, data, machine, config)
    session.check_strategies(strategies)
    here = simulation_devices(devices)
    model = jax.eval_shape(task.init, jax.random.key(0))
    num_bytes = tree.num_bytes(model)
    programs = {name: _program_of(strategy) for name, strategy in strategies.items()}
    total = len(strategies) + steps * len(set(programs.values()))
    timed: dict[Any, tuple[int, int, list[float]]] = {}
    runs = []
    with step_bar(total, "step", shown=progress, silence=SILENCE) as bar:
        for name, strategy in strategies.items():
            what = f"planning {name} ({len(runs) + 1}/{len(strategies)})"
            bar.set_description_str(what, refresh=takes_bars())
            bar.update(0)  # a line, if the last one was long ago
            virtual, updates = _virtual_time(data, machine, strategy, epochs, model)
            bar.update()
            key = programs[name]
            if key not in timed:
                settings = StepSettings.of(strategy)
                timer = StepTimer(settings, session.job(name, strategy, 0))
                size = int(strategy.batch_size)
                timed[key] = _measure(timer, here[0], size, steps, bar.update)
            replica, step, seconds = timed[key]
            held = compiled_bytes(
                strategy, session.job(name, strategy, 0), len(machine.workers), here[0]
            )
            runs.append(
                PlannedRun(
                    strategy=name,
                    virtual_seconds=virtual,
                    updates=updates,
                    replica_bytes=replica,
                    step_bytes=step,
                    device_bytes=_most_per_device(machine) * (replica + step),
                    compiled_bytes=None if held is None else held + step,
                    step_seconds=median(seconds),
                    timed=len(seconds),
                    host_seconds=updates * median(seconds) / len(here),
                )
            )
    sizes = sorted({int(s.batch_size) for s in strategies.values()})
    return Plan(
        tuple(runs),
        parameters=tree.size(model[0]),
        num_bytes=num_bytes,
        epochs=epochs,
        batch=f"{' or '.join(map(str, sizes))} examples",
        machine=machine.name,
        device=f"{device_name(here[0])} ({here[0].device_kind})",
    )


def _program_of(strategy: Strategy) -> tuple[Any, ...]:
    """Strategies with one local update and the same buffers have the same program."""
    settings, size = StepSettings.of(strategy), int(strategy.batch_size)
    return settings.local_update, settings.buffers, settings.shared, size


def _digits(value: float) -> str:
    """A number with three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _measure(
    timer: StepTimer,
    device: Device,
    size: int,
    steps: int,
    done: Callable[[], Any],
) -> tuple[int, int, list[float]]:
    """Return bytes of a replica and of a step's program, and seconds of some steps."""
    replica, *others = timer.arguments(device, size)
    program = timer.steps.lowered((replica, *others)).compile()
    memory: Any = program.memory_analysis()
    replica_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(replica))
    # in addition to the replica: activations, the batch, and outputs that do not reuse
    # an argument's memory: a whole replica, if merges may still read the old one
    inputs = sum(leaf.nbytes for leaf in jax.tree.leaves(others))
    returned = memory.output_size_in_bytes - memory.alias_size_in_bytes
    step_bytes = int(memory.temp_size_in_bytes + max(0, returned)) + inputs
    replica, *_ = program(replica, *others)  # the first one is slower
    found: list[float] = []
    while len(found) < 3 or (len(found) < steps and sum(found) < LONGEST):
        began = time.perf_counter()
        replica, *_ = jax.block_until_ready(program(replica, *others))
        found.append(time.perf_counter() - began)
        done()
    return replica_bytes, step_bytes, found


def virtual_times(
    data: Dataset,
    machine: Machine,
    strategies: Mapping[str, Strategy],
    epochs: float,
    model: Any,
) -> dict[str, tuple[float, int]]:
    """Return the virtual seconds and steps of all workers for the epochs, by name.

    `model` is (params, model state), or their shapes. A run of more than EVENTS events
    is extrapolated from the second half of them.
    """
    return {
        name: _virtual_time(data, machine, strategy, epochs, model)
        for name, strategy in strategies.items()
    }


def virtual_run(
    strategy: Strategy, machine: Machine, data: Dataset, model: Any
) -> Iterator[tuple[Event | None, Actions]]:
    """Yield each event of a run of the policy alone, and the actions decided then.

    `model` is (params, model state), or their shapes. The clock's seed is always 0.
    """
    nonzeros = nonzeros_per_example(data.train)
    clock = SimulatedClock(machine, seed=0, nonzeros_per_example=nonzeros)
    topology = strategy.policy.topology(clock.workers)
    return decisions(
        strategy.policy,
        clock,
        num_examples=len(data.train),
        traffic_of=traffic_of_actions(strategy.merges, topology, model),
        nonzeros=nonzeros,
    )


def _virtual_time(
    data: Dataset,
    machine: Machine,
    strategy: Strategy,
    epochs: float,
    model: Any,
) -> tuple[float, int]:
    wanted = epochs * len(data.train)
    examples = updates = 0
    middle = (0.0, 0, 0)
    last = 0.0
    events = virtual_run(strategy, machine, data, model)
    for number, (event, _) in enumerate(events):
        if number == EVENTS // 2:
            middle = (last, examples, updates)
        if number == EVENTS:
            break
        if not isinstance(event, Arrival):
            continue
        last = event.time
        examples += event.local_round.examples
        updates += event.local_round.local_steps
        if examples >= wanted:
            return last, updates
    share = (wanted - examples) / max(1, examples - middle[1])
    seconds = last + share * (last - middle[0])
    return seconds, math.ceil(updates + share * (updates - middle[2]))


def _most_per_device(machine: Machine) -> int:
    """Return the largest number of workers that share a device."""
    shared = [worker.device for worker in machine.workers if worker.device]
    return max(map(shared.count, shared), default=1)
