"""Rehearsals: what a policy will order, found by playing it, compiled before the clock.

A policy is played on a simulated machine that is as fast as the real workers were just
measured to be, and noisy. Every shape of work and of merge that it orders there is run
once, on throw-away replicas. What the real run needs besides is compiled when it comes:
no worker is charged for that, but the clock goes on while steps are compiled.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import jax

from hetjax.data.batching import bucket_of
from hetjax.engine.compiled.programs import mean_metrics
from hetjax.engine.job import Job
from hetjax.engine.placement import Device, Placement
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.replicas import ReplicaStore
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
from hetjax.machine.types import PUSH_FETCH
from hetjax.runtimes.threads.step_timer import StepTimer
from hetjax.schedule import simulate
from hetjax.strategies.types import Strategy

EVENTS = 20_000  # of a rehearsal, at most
SECONDS = 1.0  # of the host, at most
NOISE = 0.2  # of a step: sizes that follow speeds are to vary here as well

Shape = tuple[int, int]  # steps, batch size


@dataclass
class DryRun:
    """What was ordered."""

    shapes: list[Counter[Shape]]  # of each worker's works
    merges: dict[tuple, MergeAction] = field(default_factory=dict)  # one of each kind
    complete: bool = False  # did the policy come to its end?


def dry_run(
    strategy: Strategy,
    infos: Sequence[WorkerInfo],
    faults: tuple[ScriptedFault, ...],
    *,
    num_examples: int,
    seconds: float,
) -> DryRun:
    """Play the policy for so many virtual seconds, or as long as patience lasts."""
    workers = tuple(
        Profile(i.name, i.kind, Cost(i.fixed, i.per_example), device=i.device)
        for i in infos
    )
    links = {"": Link(1e-5, 1e10)}
    machine = Machine("rehearsal", workers, links, NOISE, faults=faults)
    found = DryRun([Counter() for _ in infos])
    run = simulate(
        strategy.policy, SimulatedClock(machine, seed=0), num_examples=num_examples
    )
    began = time.perf_counter()
    for number, (event, actions) in enumerate(_until_the_end(run, found)):
        for worker, local_round in actions.dispatch:
            found.shapes[worker][local_round.local_steps, local_round.size] += 1
        for order in actions.merges:
            found.merges.setdefault(_kind(order), order)
        over = event is not None and event.time > seconds
        if over or number > EVENTS or time.perf_counter() - began > SECONDS:
            break
    return found


def _until_the_end(run: Iterator[tuple], found: DryRun) -> Iterator[tuple]:
    try:
        yield from run
    except RunEnded:
        found.complete = True


def _kind(order: MergeAction) -> tuple:
    """Merges of one kind run the same programs."""
    nodes = tuple(m for m in order.members if isinstance(m, str))
    return order.node, order.op, len(order.members), nodes, len(order.partners)


def compile_steps(
    timer: StepTimer,
    job: Job,
    devices: Sequence[Device],
    step_modes: Sequence[str],
    found: DryRun,
) -> None:
    """Run one work of every shape on every worker's device."""
    wanted: dict[tuple[Device, int, int], tuple[str, int]] = {}
    for device, step_mode, shapes in zip(
        devices, step_modes, found.shapes, strict=True
    ):
        others = [] if found.complete else _between(shapes, job)
        for local_steps, size in (*shapes, *others):
            if not local_steps:
                continue
            padded = size if timer.exact else bucket_of(job.buckets, size, 0, 0).size
            fused = 1 if step_mode == "dispatch" else local_steps
            wanted[device, fused, padded] = step_mode, size

    learners = Counter(devices)

    def run(item: tuple) -> None:
        (device, local_steps, _), (step_mode, size) = item
        timer.once(
            timer.replica(device), timer.rows(local_steps, size), device, step_mode
        )
        if step_mode == "vmapped":  # not all of them need be there
            for number in range(2, learners[device] + 1):
                several = [timer.replica(device) for _ in range(number)]
                timer.vmapped(device, several, size, local_steps)

    with ThreadPoolExecutor(min(4, len(set(devices)))) as pool:
        list(pool.map(run, wanted.items()))


def _between(shapes: Counter[Shape], job: Job) -> list[Shape]:
    """Where sizes vary, others may come: all buckets from a quarter of the smallest."""
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
) -> None:
    """Carry out one merge of every kind, and evaluate what it leads to."""
    topology = strategy.policy.topology(tuple(infos))
    ledger = Ledger(infos, topology)
    store = ReplicaStore(
        strategy, job, placement, topology, on_fetch=ledger.record_fetch
    )
    for order in found.merges.values():
        for member in (*order.members, *order.partners):
            if isinstance(member, int):
                store.replica(member)
        # one of each kind: what a member had asked for before is not in the books
        stats = ledger.take_stats(order._replace(op=PUSH_FETCH))
        store.merge(order, stats)
    evaluate = job.programs.evaluate
    mean_metrics(evaluate, store.model(), job.test[:1], 1)
    if job.held_out:
        mean_metrics(evaluate, store.model(), job.held_out[:1], 1)
    if store.shared:  # a replica may land that was moved while it worked
        for device in dict.fromkeys(placement.workers):
            replica = store.replica(placement.workers.index(device))
            now = jax.device_put(job.programs.copies(replica), device)
            job.programs.landed(now, replica, replica)
