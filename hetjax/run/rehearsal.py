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
from hetjax.machine import (
    Cost,
    Incident,
    Link,
    Machine,
    MergeOrder,
    Profile,
    RunEnded,
    SimulatedClock,
    WorkerInfo,
)
from hetjax.run.accounts import Accounts
from hetjax.run.compilations import Compilations
from hetjax.run.executor import Device
from hetjax.run.holdings import Holdings, Places
from hetjax.run.job import Job
from hetjax.run.measuring import StepTimer
from hetjax.run.programs import mean_metrics
from hetjax.schedule import play
from hetjax.strategies.types import Strategy

EVENTS = 20_000  # of a rehearsal, at most
SECONDS = 1.0  # of the host, at most
NOISE = 0.2  # of a step: sizes that follow speeds are to vary here as well

Shape = tuple[int, int]  # steps, batch size


@dataclass
class Rehearsal:
    """What was ordered."""

    shapes: list[Counter[Shape]]  # of each worker's works
    merges: dict[tuple, MergeOrder] = field(default_factory=dict)  # one of each kind
    complete: bool = False  # did the policy come to its end?


def rehearse(
    strategy: Strategy,
    infos: Sequence[WorkerInfo],
    incidents: tuple[Incident, ...],
    *,
    num_examples: int,
    seconds: float,
) -> Rehearsal:
    """Play the policy for so many virtual seconds, or as long as patience lasts."""
    workers = tuple(
        Profile(i.name, i.kind, Cost(i.fixed, i.per_example), device=i.device)
        for i in infos
    )
    links = {"": Link(1e-5, 1e10)}
    machine = Machine("rehearsal", workers, links, NOISE, incidents=incidents)
    found = Rehearsal([Counter() for _ in infos])
    run = play(
        strategy.policy, SimulatedClock(machine, seed=0), num_examples=num_examples
    )
    began = time.perf_counter()
    for number, (event, orders) in enumerate(_until_the_end(run, found)):
        for worker, work in orders.dispatch:
            found.shapes[worker][work.steps, work.size] += 1
        for order in orders.merges:
            found.merges.setdefault(_kind(order), order)
        over = event is not None and event.time > seconds
        if over or number > EVENTS or time.perf_counter() - began > SECONDS:
            break
    return found


def _until_the_end(run: Iterator[tuple], found: Rehearsal) -> Iterator[tuple]:
    try:
        yield from run
    except RunEnded:
        found.complete = True


def _kind(order: MergeOrder) -> tuple:
    """Merges of one kind run the same programs."""
    nodes = tuple(m for m in order.members if isinstance(m, str))
    return order.node, order.op, len(order.members), nodes, len(order.passive)


def compile_steps(
    timer: StepTimer,
    job: Job,
    devices: Sequence[Device],
    forms: Sequence[str],
    found: Rehearsal,
) -> None:
    """Run one work of every shape on every worker's device."""
    wanted: dict[tuple[Device, int, int], tuple[str, int]] = {}
    for device, form, shapes in zip(devices, forms, found.shapes, strict=True):
        others = [] if found.complete else _between(shapes, job)
        for steps, size in (*shapes, *others):
            if not steps:
                continue
            padded = size if timer.exact else bucket_of(job.buckets, size, 0, 0).size
            fused = 1 if form == "dispatch" else steps
            wanted[device, fused, padded] = form, size

    learners = Counter(devices)

    def run(item: tuple) -> None:
        (device, steps, _), (form, size) = item
        timer.once(timer.replica(device), timer.rows(steps, size), device, form)
        if form == "vmapped":  # not all of them need be there
            for number in range(2, learners[device] + 1):
                several = [timer.replica(device) for _ in range(number)]
                timer.together(device, several, size, steps)

    with ThreadPoolExecutor(min(4, len(set(devices)))) as pool:
        list(pool.map(run, wanted.items()))


def _between(shapes: Counter[Shape], job: Job) -> list[Shape]:
    """Where sizes vary, others may come: all buckets from a quarter of the smallest."""
    sizes = {size for steps, size in shapes if steps}
    if len(sizes) < 2:
        return []
    steps = {steps for steps, _ in shapes if steps}
    buckets = {b.size for b in job.buckets if b.size >= min(sizes) / 4}
    return [(k, size) for k in steps for size in sorted(buckets)]


def compile_merges(
    strategy: Strategy,
    job: Job,
    infos: Sequence[WorkerInfo],
    places: Places,
    found: Rehearsal,
) -> None:
    """Carry out one merge of every kind, and evaluate what it leads to."""
    accounts = Accounts(infos)
    holdings = Holdings(
        strategy,
        job.programs,
        Compilations(),
        seed=job.seed,
        on_fetch=accounts.fetched,
        places=places,
    )
    for order in found.merges.values():
        for member in (*order.members, *order.passive):
            if isinstance(member, int):
                holdings.replica(member)
        # one of each kind: what a member had asked for before is not in the books
        facts = accounts.facts(order._replace(op=""))
        holdings.merge(order, facts)
    evaluate = job.programs.evaluate
    mean_metrics(evaluate, holdings.model(), job.test[:1], 1)
    if job.held_out:
        mean_metrics(evaluate, holdings.model(), job.held_out[:1], 1)
    if holdings.shared:  # a replica may land that was moved while it worked
        for device in dict.fromkeys(places.workers):
            replica = holdings.replica(places.workers.index(device))
            now = jax.device_put(job.programs.copies(replica), device)
            job.programs.landed(now, replica, replica)
