"""The cost of calls of actors, compared with threads. See `cluster.py`."""

from dataclasses import replace
from statistics import median
from typing import Any

import jax
import numpy as np

import hetjax as hj
from experiments.benchmarks import turns
from hetjax import tree
from hetjax.api.progress import ProgressBar
from hetjax.api.session import Session

FEATURES, CLASSES, BATCH, WORKERS = 1024, 10, 4, 3
KINDS = {"round": hj.local_sgd, "arrival": hj.async_sgd}
COMPLETING = {"sma": hj.sma, "easgd": hj.easgd}  # workers complete their merges


def setting(megabytes: float) -> tuple[hj.Task, hj.data.Dataset]:
    """A perceptron of this size, and noise to train it on."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=512)
    data = hj.data.from_arrays((x, y), (x[:64], y[:64]), num_classes=CLASSES)
    hidden = max(1, round(1e6 * megabytes / 4 / (FEATURES + CLASSES + 1)))
    return hj.classification(hj.models.mlp(hidden=hidden), data), data


def strategy(kind: str) -> hj.Strategy:
    """One step, then a merge: of all workers, or of one."""
    common: dict[str, Any] = {"batch_size": BATCH, "learning_rate": 1e-4}
    if kind == "round":
        return hj.local_sgd(**common, local_steps=1, momentum=0.0)
    return hj.async_sgd(**common)


def measure(
    megabytes: float, seconds: float, number: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ratios and medians of a model of this size; `number` turns."""
    task, data = setting(megabytes)
    model_bytes = tree.num_bytes(jax.eval_shape(task.init, jax.random.key(0)))
    ratios: dict[str, Any] = {}
    raw: dict[str, Any] = {"model_bytes": model_bytes}
    with hj.cluster_machine(local_workers=WORKERS, step_mode="dispatch") as cluster:
        threads = hj.local_machine(
            [f"cpu:{k}" for k in range(WORKERS)], step_mode="dispatch"
        )
        for kind in KINDS:
            sessions = {
                "cluster": turns.session(task, data, cluster),
                "threads": turns.session(task, data, threads),
            }
            contenders = {
                who: turns.trained(session, strategy(kind))
                for who, session in sessions.items()
            }
            key = f"overhead/{megabytes:g}MB/{kind}"
            found = turns.in_turn(contenders, seconds, number, key, window=1)
            ratios[key] = round(turns.ratio(found["cluster"], found["threads"]), 3)
            raw |= {
                f"{kind}_{who}_ms": round(1e3 * median(gaps), 3)
                for who, gaps in found.items()
            }
            moved: Any = _moved(
                sessions["cluster"], strategy(kind), seconds, model_bytes
            )
            raw[f"{kind}_moved"] = moved
            ratios[f"overhead/{megabytes:g}MB/bytes/{kind}"] = sum(moved) / 2
        for name, factory in COMPLETING.items():
            session = turns.session(task, data, cluster)
            chosen = factory(batch_size=BATCH, learning_rate=1e-4)
            moved = _moved(session, chosen, seconds, model_bytes)
            raw[f"{name}_moved"] = moved
            ratios[f"overhead/{megabytes:g}MB/bytes/{name}"] = sum(moved) / 2
    return ratios, {f"{megabytes:g}MB": raw}


def _moved(
    session: Session, chosen: hj.Strategy, seconds: float, model_bytes: float
) -> tuple[float, float]:
    """Models sent and received for each merge of a worker."""
    history = run_once(session, chosen, seconds)
    merged = sum(sum(w.staleness.values()) for w in history.workers)
    up = sum(w.bytes_received for w in history.workers)
    # the model with which a worker begins belongs to no merge
    begun = sum(w.updates > 0 for w in history.workers)
    down = sum(w.bytes_sent for w in history.workers) - begun * model_bytes
    return round(up / merged / model_bytes, 3), round(down / merged / model_bytes, 3)


def run_once(session: Session, chosen: hj.Strategy, seconds: float) -> hj.History:
    """A run of a session, for its history."""
    session = session.with_seconds(max(seconds, 1.0))
    return session.run(chosen.name, chosen, 0, ProgressBar(1.0, shown=False))


def measure_steps(
    megabytes: float, milliseconds: list[float], seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The overhead's share of rounds of one step of these lengths."""
    task, data = setting(megabytes)
    ratios, raw = {}, {}
    with hj.cluster_machine(local_workers=WORKERS, step_mode="dispatch") as cluster:
        step = _step_seconds(task, data, cluster)
        for wanted in milliseconds:
            slowdown = max(1.0, wanted / 1e3 / step)
            slowed = _slowed(cluster, slowdown)
            session = turns.session(task, data, slowed)
            history = run_once(
                session, strategy("round"), max(seconds, 10 * wanted / 1e3)
            )
            gap = turns.usual_gap(history.merge_times, 1)
            busy = sum(w.busy for w in history.workers)
            took = busy / sum(w.updates for w in history.workers)
            key = f"{megabytes:g}MB/{wanted:g}ms"
            ratios[f"steps/{key}"] = round(1 - took / gap, 4)
            raw[key] = {
                "round_ms": round(1e3 * gap, 3),
                "step_ms": round(1e3 * took, 3),
            }
    return ratios, raw


def _slowed(machine: hj.api.ClusterMachine, slowdown: float) -> hj.api.ClusterMachine:
    workers = tuple(replace(w, slowdown=slowdown) for w in machine.workers)
    return replace(machine, workers=workers)


def _step_seconds(
    task: hj.Task, data: hj.data.Dataset, machine: hj.api.ClusterMachine
) -> float:
    """The usual seconds of a step while the others compute."""
    history = run_once(turns.session(task, data, machine), strategy("round"), 2.0)
    busy = sum(w.busy for w in history.workers)
    return busy / sum(w.updates for w in history.workers)
