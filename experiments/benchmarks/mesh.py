"""The mesh: rounds as one program, against hand-written JAX.

    python experiments/benchmarks/mesh.py                           (twenty minutes)
    python experiments/benchmarks/mesh.py --parts=rounds --models=mlp64 --turns=3

rounds     8 workers make 8 steps of 32 examples of plain SGD each and are averaged, on
           one device and on all: hetjax's mesh and threads, hand-written JAX whose
           batches are already on the devices ("ready"), or that draws, gathers and
           sends them for every round ("feeding"), FedJAX and DrJAX (null where not
           installed: pip install 'hetjax[bench]')
overhead   rounds of 8 steps of 0.1, 1 and 10 ms and a merge, with one worker on one
           device, against one program of the same steps and merge in a plain loop
merges     averaging a tuple of 4 and 8 replicas, against copying them; along a mesh,
           with `psum` and gathered
processes  8 workers on a mesh over 1, 2 and 4 processes on this host

The contenders of a part take turns; medians are over a turn without its first two
rounds, and over turns. One JSON object on standard output: raw "medians", and "ratios":

rounds/MODEL/8dev                   seconds of hetjax's mesh / hand-written
rounds/MODEL/8dev/us_above          microseconds of the mesh above hand-written
rounds/MODEL/8dev/over_feeding      seconds of the mesh / hand-written, feeding
rounds/MODEL/8dev/over_threads      seconds of the mesh / of hetjax's threads
rounds/MODEL/1dev/over_best_peer    seconds of the mesh / of FedJAX or DrJAX
overhead/1ms                        seconds of hetjax's mesh / hand-written, minus 1
merges/8x4M                         bytes per second of merging / of copying
merges/8dev/4M/psum_over_gathered   seconds of the two merges along a mesh
processes/16/2                      rounds per second of 2 processes / of 1
"""

import json
from collections.abc import Callable
from typing import Any

import jax
from absl import flags

from experiments.benchmarks import (
    mesh_merges,
    mesh_overhead,
    mesh_processes,
    mesh_rounds,
    step_times,
)
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_list("parts", [], "some of the four parts; default: all")
flags.DEFINE_list("models", [], "of rounds: mlp784, mlp64, cnn; default: all")
flags.DEFINE_integer("workers", 8, "of rounds and processes: workers in all")
flags.DEFINE_integer("local_steps", 8, "of rounds: steps of every worker")
flags.DEFINE_integer("batch_size", 32, "of rounds: examples of every step")
flags.DEFINE_integer("cpu_devices", 8, "devices that the CPU is divided into")
flags.DEFINE_list("step_ms", ["0.1", "1", "10"], "of overhead: step times [ms]")
flags.DEFINE_list("replicas", ["4", "8"], "of merges: sizes of tuples")
flags.DEFINE_list("floats", ["4000000", "100000000"], "of merges: sizes of replicas")
flags.DEFINE_list("processes", ["1", "2", "4"], "of processes: their numbers")
flags.DEFINE_list("hidden", ["16", "32768"], "of processes: an MLP's hidden units")
flags.DEFINE_float("seconds", 2.0, "seconds of every turn, at least")
flags.DEFINE_integer("turns", 5, "turns of each contender")
bounded("workers", *bounds.DEVICES)
bounded("local_steps", 1, 1000, "a program has all of them unrolled")
bounded("batch_size", *bounds.BATCH_SIZE)
bounded("cpu_devices", *bounds.DEVICES)
bounded("seconds", 1e-3, 10**6, "it is a time that passes")
bounded("turns", 1, 1000, "every turn is run")
Found = tuple[dict[str, Any], dict[str, Any]]  # ratios, medians


def rounds() -> Found:
    """Every model on one device, and on all."""
    ratios, raw = {}, {}
    setting = mesh_rounds.Setting(FLAGS.workers, FLAGS.local_steps, FLAGS.batch_size)
    for model in FLAGS.models or mesh_rounds.MODELS:
        found, medians = mesh_rounds.measure(model, setting, *_turns())
        ratios |= found
        raw |= medians
    return ratios, raw


def overhead() -> Found:
    """Every step time, with one worker on the first device."""
    ratios, raw = {}, {}
    for ms in step_times.milliseconds(FLAGS.step_ms):
        found, raw[f"{ms:g}ms"] = mesh_overhead.measure(ms, jax.devices()[0], *_turns())
        ratios |= found
    return ratios, raw


def merges() -> Found:
    """Every size of replicas, on the first device and along a mesh of all."""
    ratios, raw = {}, {}
    devices = jax.devices()
    for floats in bounds.whole_numbers("floats", FLAGS.floats):
        size = mesh_merges.millions(floats)
        for k in bounds.whole_numbers("replicas", FLAGS.replicas):
            found, raw[f"{k}x{size}"] = mesh_merges.measure_tuple(
                k, floats, devices[0], *_turns()
            )
            ratios |= found
        if len(devices) > 1:
            found, raw[f"{len(devices)}dev/{size}"] = mesh_merges.measure_axis(
                floats, devices, *_turns()
            )
            ratios |= found
    return ratios, raw


def processes() -> Found:
    """Every number of processes, with every model."""
    raw = {
        f"{hidden}/{number}": mesh_processes.measure(
            number, hidden, FLAGS.workers, *_turns()
        )
        for hidden in bounds.whole_numbers("hidden", FLAGS.hidden)
        for number in bounds.whole_numbers("processes", FLAGS.processes)
    }
    return mesh_processes.ratios(raw), raw


PARTS: dict[str, Callable[[], Found]] = {
    part.__name__: part for part in (rounds, overhead, merges, processes)
}


def _turns() -> tuple[float, int]:
    return FLAGS.seconds, FLAGS.turns


def _check_flags() -> None:
    """Refuse wrong settings before anything is measured."""
    for flag, known in {"parts": PARTS, "models": mesh_rounds.MODELS}.items():
        bounds.check_some_of(flag, getattr(FLAGS, flag), known)
    step_times.milliseconds(FLAGS.step_ms)
    least = {"floats": mesh_merges.LEAVES, "replicas": 1, "processes": 1, "hidden": 1}
    for flag, lowest in least.items():
        if min(bounds.whole_numbers(flag, getattr(FLAGS, flag))) < lowest:
            raise ValueError(f"--{flag}: pass numbers from {lowest}")


def main() -> None:
    _check_flags()
    jax.config.update("jax_num_cpu_devices", FLAGS.cpu_devices)
    devices, parts = jax.devices(), FLAGS.parts or PARTS
    if "rounds" in parts and FLAGS.workers % len(devices):
        raise ValueError(
            f"--workers={FLAGS.workers}: pass a multiple of the {len(devices)} devices"
        )
    found = {name: PARTS[name]() for name in parts}
    result = {
        "ratios": {k: v for ratios, _ in found.values() for k, v in ratios.items()},
        "medians": {name: medians for name, (_, medians) in found.items()},
        "device": devices[0].device_kind,
        "devices": len(devices),
        "jax": jax.__version__,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    scripts.run(main)
