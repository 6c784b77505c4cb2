"""Rounds of local SGD: hetjax's virtual machine, hand-written JAX, and its peers.

    python experiments/benchmarks/local_sgd.py                         (three minutes)
    python experiments/benchmarks/local_sgd.py --models=mlp --rounds=3

K replicas do T steps of B examples each, then they are averaged: K=32, T=8, B=32 on an
MLP 784-128-64-10; K=8, T=4, B=32 on a CNN (conv 5x5x16, pool, conv 5x5x32, pool, fc 64,
fc 10). The data are random, the steps plain SGD on the default device. Every contender
draws its batches in its own way. The contenders take turns, round by round.

One JSON object on standard output: "replica_steps_per_s" (medians over the rounds) of
hetjax, of hand-written JAX (scan, unrolled, dispatch), of FedJAX, DrJAX and PyTorch
with 1 and 2 threads (null where one is not installed: pip install 'hetjax[bench]'), and
"ratios". Expected: hetjax at least 0.9 of the best hand-written JAX.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.benchmarks import local_sgd_peers as peers
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["mlp", "cnn"], "mlp, cnn, or both")
flags.DEFINE_integer("rounds", 10, "measured rounds of every contender")
flags.DEFINE_integer("seed", 0, "seed of data and parameters")
bounded("rounds", 1, 10_000, "every round is run")
bounded("seed", *bounds.SEED)

SETTINGS = {"mlp": (32, 8, 32), "cnn": (8, 4, 32)}  # K, T, B
PEERS = ("fedjax", "drjax", "torch_1_thread", "torch_2_threads")


def hetjax_rounds(name: str, data: hj.data.Dataset) -> Callable[[], float]:
    """Seconds of a round on the virtual machine, from runs of a few rounds.

    A first run compiles. The difference between a long and a short run leaves out the
    set-up time of a run.
    """
    k, t, b = SETTINGS[name]
    model = hj.from_functions(*peers.MODELS[name])
    task = hj.classification(model, data)
    machine = hj.machine.preset(f"uniform:{k}", noise=0.0)
    strategy = hj.local_sgd(batch_size=b, learning_rate=0.01, local_steps=t)
    (info, *_) = machine.worker_infos(0.0)
    one = t * info.seconds(b)  # [s] of a round on the virtual clock
    session = Session(task, data, machine, RunConfig(seconds=one, num_evals=1))

    def run(rounds: int) -> tuple[float, int]:
        """Return (seconds, number of merges)."""
        bar = ProgressBar(1.0, shown=False)
        began = time.perf_counter()
        lasting = session.with_seconds(rounds * one * 1.02)
        history = lasting.run("local_sgd", strategy, FLAGS.seed, bar)
        jax.block_until_ready(history.params)
        return time.perf_counter() - began, history.merges

    def seconds() -> float:
        (short, few), (long, more) = run(2), run(8 if name == "mlp" else 5)
        return (long - short) / (more - few)

    run(2)
    return seconds


def contenders(name: str) -> dict[str, Callable[[], float] | None]:
    """A function per contender that runs a round and returns its seconds."""
    data = peers.make_data(name, FLAGS.seed)
    k, t, b = SETTINGS[name]
    chosen: dict[str, Any] = {"hetjax": hetjax_rounds(name, data)}
    for variant in ("scan", "unrolled", "dispatch"):
        chosen[f"jax_{variant}"] = peers.jax_rounds(name, data, k, t, b, variant)
    for peer, package, make in (
        ("fedjax", "fedjax", peers.fedjax_rounds),
        ("drjax", "drjax", peers.drjax_rounds),
        ("torch_1_thread", "torch", lambda *a: peers.torch_rounds(*a, threads=1)),
        ("torch_2_threads", "torch", lambda *a: peers.torch_rounds(*a, threads=2)),
    ):
        installed = importlib.util.find_spec(package) is not None
        chosen[peer] = make(name, data, k, t, b) if installed else None
    return chosen


def measure(name: str) -> dict[str, float | None]:
    """Replica-steps per second of every contender."""
    k, t, _ = SETTINGS[name]
    rounds = contenders(name)
    seconds: dict[str, list[float]] = {who: [] for who in rounds}
    for number in range(FLAGS.rounds + 1):
        for who, run in rounds.items():
            if run is not None:
                took = run()
                if number:  # the first one compiles
                    seconds[who].append(took)
        print(f"{name}: round {number} of {FLAGS.rounds}", file=sys.stderr)
    return {
        who: round(k * t / median(s), 1) if s else None for who, s in seconds.items()
    }


def ratios(name: str, speeds: dict[str, float | None]) -> dict[str, float | None]:
    """The ratios of hetjax to the best hand-written JAX, and to the best peer."""
    own = speeds["hetjax"] or 0.0
    by_hand = max(v for k, v in speeds.items() if k.startswith("jax_") and v)
    others = [v for k, v in speeds.items() if k in PEERS and v]
    return {
        f"{name}/hetjax_over_jax": round(own / by_hand, 3),
        f"{name}/hetjax_over_best_peer": round(own / max(others), 3)
        if others
        else None,
    }


def main() -> None:
    unknown = set(FLAGS.models) - set(SETTINGS)
    if unknown or not FLAGS.models:
        raise ValueError(f"--models={','.join(FLAGS.models)}: pass some of mlp, cnn")
    speeds = {name: measure(name) for name in FLAGS.models}
    found = {k: v for name in speeds for k, v in ratios(name, speeds[name]).items()}
    result = {
        "ratios": found,
        "replica_steps_per_s": speeds,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    scripts.run(main)
