"""Dry runs: predict the shapes that a run will need, and compile them in advance.

The tape is written for a noisy simulated machine with the measured speeds of the real
workers. Every shape of local round and every kind of merge on it is run once, on
temporary replicas. Other programs are compiled when they are first needed.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import jax

from hetjax.data.batching import bucket_of
from hetjax.engine.decisions import write_unplayed
from hetjax.engine.job import Job
from hetjax.engine.placement import Device, Placement
from hetjax.engine.programs.evaluation_batches import mean_metrics
from hetjax.engine.replica_store import ReplicaStore
from hetjax.engine.tape import MergeReplicas, StartRound
from hetjax.machine import (
    Cost,
    Link,
    Machine,
    MergeAction,
    Profile,
    RunEnded,
    ScriptedFault,
    SimulatedClock,
    WorkerInfo,
)
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.strategies.types import Strategy

MAX_ENTRIES = 100_000  # of the tape of a dry run
MAX_SECONDS = 1.0  # [s] wall-clock time of a dry run
EVALUATIONS = 100  # at intervals of a step: a policy may merge before each
NOISE = 0.2  # of a step: batch sizes that adapt to speeds must vary, as in a real run

Shape = tuple[int, int]  # steps, batch size


@dataclass
class DryRun:
    """The shapes and merges on the tape of a dry run."""

    shapes: list[Counter[Shape]]  # of each worker's local rounds
    merges: dict[tuple, MergeReplicas] = field(default_factory=dict)  # one of each kind
    complete: bool = False  # whether the policy ended the run


def dry_run(
    strategy: Strategy,
    infos: Sequence[WorkerInfo],
    faults: tuple[ScriptedFault, ...],
    *,
    num_examples: int,
    seconds: float,
) -> DryRun:
    """Read the tape of `seconds`, within the limits MAX_ENTRIES and MAX_SECONDS."""
    workers = tuple(
        Profile(i.name, i.kind, Cost(i.fixed, i.per_example), device=i.device)
        for i in infos
    )
    links = {"": Link(latency=1e-5, bandwidth=1e10)}
    machine = Machine("dry run", workers, links, NOISE, faults=faults)
    found, began = DryRun([Counter() for _ in infos]), time.perf_counter()
    step = max(i.seconds(strategy.batch_size) for i in infos)
    clock = SimulatedClock(machine, seed=0)
    instants = [k * step for k in range(1, EVALUATIONS)]
    tape = write_unplayed(
        strategy.policy, clock, num_examples=num_examples, instants=instants
    )
    try:
        for number, entry in enumerate(tape):
            if isinstance(entry, StartRound):
                shape = entry.local_round.local_steps, entry.local_round.size
                found.shapes[entry.worker][shape] += 1
            elif isinstance(entry, MergeReplicas):
                found.merges.setdefault(_kind(entry.action), entry)
            over = clock.now > seconds or number > MAX_ENTRIES
            if over or time.perf_counter() - began > MAX_SECONDS:
                break
    except RunEnded:
        found.complete = True
    return found


def _kind(action: MergeAction) -> tuple:
    """Return the kind of a merge: merges of one kind run the same programs."""
    nodes = tuple(m for m in action.members if isinstance(m, str))
    return action.node, action.op, len(action.members), nodes, len(action.partners)


def compile_steps(
    timer: StepTimer,
    job: Job,
    devices: Sequence[Device],
    step_modes: Sequence[str],
    found: DryRun,
) -> None:
    """Run one local round of every shape on every worker's device."""
    wanted: dict[tuple[Device, int, int], tuple[str, int]] = {}
    for device, step_mode, shapes in zip(
        devices, step_modes, found.shapes, strict=True
    ):
        others = [] if found.complete else _between(shapes, job)
        for local_steps, size in (*shapes, *others):
            if not local_steps:
                continue
            padded = size if timer.exact else bucket_of(job.buckets, size).size
            fused = 1 if step_mode == "dispatch" else local_steps
            wanted[device, fused, padded] = step_mode, size

    learners = Counter(devices)

    def run(item: tuple) -> None:
        (device, local_steps, _), (step_mode, size) = item
        # a group of vmapped steps may have fewer workers than the device
        most = learners[device] if step_mode == "vmapped" else 1
        for number in range(1, most + 1):
            replicas = [timer.replica(device) for _ in range(number)]
            timer.run(replicas, local_steps, size, device, step_mode)

    with ThreadPoolExecutor(min(4, len(set(devices)))) as pool:
        list(pool.map(run, wanted.items()))


def _between(shapes: Counter[Shape], job: Job) -> list[Shape]:
    """Return more shapes that may occur where sizes vary, as in adaptive strategies.

    They have all bucket sizes from a quarter of the smallest size on.
    """
    sizes = {size for local_steps, size in shapes if local_steps}
    if len(sizes) < 2:
        return []
    local_steps = {local_steps for local_steps, _ in shapes if local_steps}
    buckets = {b.size for b in job.buckets if b.size >= min(sizes) / 4}
    return [(k, size) for k in local_steps for size in sorted(buckets)]


def compile_merges(
    strategy: Strategy,
    job: Job,
    infos: Sequence[WorkerInfo],
    placement: Placement,
    found: DryRun,
    open_store: Callable[..., ReplicaStore] = ReplicaStore,
) -> None:
    """Carry out one merge of every kind, then an evaluation."""
    topology = strategy.policy.topology(tuple(infos))
    store = open_store(strategy, job, placement, topology)
    begun: set[int] = set()
    for action, stats in found.merges.values():
        job.compilations.between_programs()
        for member in {*action.members, *action.partners} - begun:
            if isinstance(member, int):
                begun.add(member)
                store.begin(member)
        store.merge(action, stats)
    for batches in (job.test, job.held_out):
        if batches:
            mean_metrics(job.programs, store.model(), [batches[0]])
    if store.shared:  # a replica that merges changed during its round may arrive
        for device in dict.fromkeys(placement.workers):
            worker = placement.workers.index(device)
            if worker not in begun:
                store.begin(worker)
            replica = store.member(worker)
            now = jax.device_put(job.programs.copies(replica), device)
            job.programs.check_in(now, replica, replica)
