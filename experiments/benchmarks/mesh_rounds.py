"""Rounds of local SGD: hetjax's mesh and threads, hand-written JAX, FedJAX and DrJAX.

See `mesh.py`, which runs this.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax

import hetjax as hj
from experiments.benchmarks import local_sgd_peers as peers
from experiments.benchmarks import mesh_manual, turns
from experiments.benchmarks.mesh_manual import Setting
from experiments.benchmarks.turns import Contender
from hetjax.api.session import Session

MODELS = {"mlp784": "mlp", "mlp64": "mlp64", "cnn": "cnn"}  # names in `peers`
PEERS = {"fedjax": peers.fedjax_rounds, "drjax": peers.drjax_rounds}


def measure(
    model: str, setting: Setting, seconds: float, number: int
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Ratios and medians of a model's rounds, on one device and on all; in turns."""
    name = MODELS[model]
    data = peers.make_data(name, seed=0)
    task = hj.classification(hj.from_functions(*peers.MODELS[name]), data)
    session = turns.session(task, data, hj.local_machine(jax.devices()))
    ratios, raw = {}, {}
    for count in sorted({1, len(jax.devices())}):
        devices, key = jax.devices()[:count], f"{model}/{count}dev"
        variants = mesh_manual.variants_for(name, devices, setting)
        by_hand = partial(mesh_manual.contender, name, data, setting, devices)
        contenders = {f"by_hand_{v}": by_hand(v) for v in variants}
        contenders |= {f"feeding_{v}": by_hand(v, feeds=True) for v in variants}
        contenders |= _hetjax(session, setting, devices)
        if count == 1:
            contenders |= _peers(name, data, setting)
        found = turns.in_turn(contenders, seconds, number, key)
        ratios |= _ratios(f"rounds/{key}", found)
        raw[key] = turns.microseconds(found)
        if count == 1:
            ratios[f"rounds/{key}/over_best_peer"] = _over_best_peer(found)
            raw[key] = {f"{peer}_us": None for peer in PEERS} | raw[key]
    return ratios, raw


def _hetjax(
    session: Session, setting: Setting, devices: Sequence[Any]
) -> dict[str, Contender]:
    strategy = hj.local_sgd(
        batch_size=setting.batch_size,
        learning_rate=peers.RATE,
        local_steps=setting.steps,
        momentum=0.0,
    )
    machines = {
        placement: hj.local_machine(
            devices,
            workers_per_device=setting.workers // len(devices),
            placement=placement,
        )
        for placement in ("mesh", "threads")
    }
    return {
        placement: turns.trained(session.with_machine(machine), strategy)
        for placement, machine in machines.items()
    }


def _peers(name: str, data: hj.data.Dataset, setting: Setting) -> dict[str, Contender]:
    """The peers that are installed."""
    rounds = {
        peer: make(name, data, *setting)
        for peer, make in PEERS.items()
        if importlib.util.find_spec(peer) is not None
    }
    return {
        peer: turns.by_hand(lambda number, run=one_round: run())
        for peer, one_round in rounds.items()
    }


def _ratios(key: str, found: Mapping[str, list[float]]) -> dict[str, float | None]:
    """hetjax's mesh over the best hand-written program, and over hetjax's threads.

    Its batches are ready on the devices ("by_hand") or sent round by round.
    """
    ours, by_hand = found["mesh"], found[turns.fastest(found, "by_hand")]
    feeding = found[turns.fastest(found, "feeding")]
    above = median(a - b for a, b in zip(ours, by_hand, strict=True))
    return {
        key: round(turns.ratio(ours, by_hand), 3),
        f"{key}/us_above": round(1e6 * above, 1),
        f"{key}/over_feeding": round(turns.ratio(ours, feeding), 3),
        f"{key}/over_threads": round(turns.ratio(ours, found["threads"]), 3),
    }


def _over_best_peer(found: Mapping[str, list[float]]) -> float | None:
    """hetjax's mesh over the best peer that is installed; None without any."""
    others = {peer: found[peer] for peer in PEERS if peer in found}
    if not others:
        return None
    return round(turns.ratio(found["mesh"], others[turns.fastest(others)]), 3)
