"""Overhead of the loop with one worker on a mesh of one device.

In the hand-written version, the steps and the merge that hetjax runs are one donated
program, called on batches that are ready, without the check for NaN; one round may be
queued, as on a mesh. See `mesh.py`, which runs this.
"""

from typing import Any

import jax
import numpy as np
from jax import lax

import hetjax as hj
from experiments.benchmarks import step_times, turns
from experiments.benchmarks.step_times import BATCH, STEPS
from experiments.benchmarks.turns import Contender
from hetjax.data.batching import make_batch
from hetjax.engine.job import Job
from hetjax.replica import Replica

READY = 16  # rounds' batches
RATE = np.float32(1e-3)
VARIANTS = {"fused": 1, "unrolled": STEPS}  # and how far the steps are unrolled


def measure(
    milliseconds: float, device: Any, seconds: float, number: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Ratios and medians of rounds of steps that take so long; `number` turns."""
    data, strategy = step_times.make_data(), step_times.rounds_strategy()
    width = step_times.width_for(milliseconds, device, step_mode="fused")
    task = hj.classification(hj.models.mlp(hidden=width), data)
    job = step_times.job_of(task, data, strategy, device)
    machine = hj.local_machine([device], placement="mesh")
    contenders = {
        f"by_hand_{v}": by_hand(job, strategy, device, v) for v in VARIANTS
    } | {"mesh": turns.trained(turns.session(task, data, machine), strategy)}
    key = f"overhead/{milliseconds:g}ms"
    found = turns.in_turn(contenders, seconds, number, key)
    best = turns.fastest(found, "by_hand")
    added = turns.ratio(found["mesh"], found[best]) - 1
    raw = {"width": width, **turns.microseconds(found)}
    return {key: round(added, 4)}, raw


def by_hand(job: Job, strategy: hj.Strategy, device: Any, variant: str) -> Contender:
    """Rounds of one program: the steps of a strategy, and its merge."""
    merge, programs = strategy.merges[0], job.programs
    step = programs.step_fn(strategy.local, merge.requires)
    stats = hj.merge.stats([STEPS], batch_size=BATCH, learning_rate=RATE)

    def whole_round(state: Any, replica: Replica, batches: Any) -> tuple:
        def body(replica: Replica, inputs: tuple) -> tuple[Replica, jax.Array]:
            batch, number = inputs
            key_data = jax.numpy.zeros(3, np.uint32).at[2].set(number)
            replica, _, mean = step(replica, batch, RATE, key_data)
            return replica, mean

        numbers = np.arange(STEPS, dtype=np.uint32)
        replica, means = lax.scan(
            body, replica, (batches, numbers), unroll=VARIANTS[variant]
        )
        state, (replica,) = merge.apply(state, (replica,), stats)
        return state, replica, means[-1]

    program = jax.jit(whole_round, donate_argnums=(0, 1))
    batches = [jax.device_put(_batches(job, seed), device) for seed in range(READY)]
    model = jax.device_put(programs.init(jax.random.key(0)), device)
    replica = programs.replica(strategy.local, merge.requires)(*model)
    state = programs.state(merge)(*model)

    def one_round(number: int) -> jax.Array:
        nonlocal state, replica
        state, replica, mean = program(state, replica, batches[number % READY])
        return mean

    return turns.by_hand(one_round, ahead=1)


def _batches(job: Job, seed: int) -> Any:
    """The batches [STEPS, ...] of a round, on the host."""
    rows = np.random.default_rng(seed).integers(len(job.train), size=(STEPS, BATCH))
    each = [make_batch(job.train, r, job.buckets) for r in rows]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)
