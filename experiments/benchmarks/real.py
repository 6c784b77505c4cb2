"""Real runs on two CPU devices, one slowed down 3 times: predicted and measured.

    python experiments/benchmarks/real.py                                 (ten minutes)
    python experiments/benchmarks/real.py --devices=gpu:0,cpu:0 --slowdown=1

The devices are calibrated first, for the steps of SGD and those of eamsgd. Then
local_sgd, biased_local_sgd, adaptive_sgd and eamsgd run in turn on the devices and on
the calibrated machine. One JSON object on standard output, with "ratios":

prediction_error/NAME  |predicted / measured - 1| of the median time between merges;
                       where the calibration found that two speeds are possible, that
                       of the time in the predicted range that is closest
range/NAME             longest / shortest predicted time; 1 if it is no range
time_to_target/NAME    seconds to the target / seconds of the fast device alone
waiting/NAME           measured share of the workers' time that is spent waiting
replay/NAME            1 if every run was replayed bit by bit, else 0
advice/NAME            measured examples/s / examples/s that `hj.advise` predicts

and the raw medians over --runs. Targets: errors of 0.1. Timelines of the first run are
saved to --out.
"""

import json
import math
import sys
from pathlib import Path
from statistics import median
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.report.record import plain

FLAGS = flags.FLAGS
flags.DEFINE_list("devices", ["cpu:0", "cpu:1"], "two devices, the fast one first")
flags.DEFINE_float("slowdown", 3.0, "imposed slowdown of the second device")
flags.DEFINE_integer("hidden", 2048, "hidden units of the MLP: they set the step time")
flags.DEFINE_integer("batch_size", 64, "batch size (the largest, if it adapts)")
flags.DEFINE_float("learning_rate", 0.01, "learning rate")
flags.DEFINE_float("seconds", 6.0, "seconds of every run")
flags.DEFINE_float("target", 0.95, "test accuracy to reach")
flags.DEFINE_integer("runs", 3, "runs of every strategy")
flags.DEFINE_list("strategies", [], "some of the four strategies; default: all")
flags.DEFINE_string("out", None, "folder of the timelines; default: none are saved")
bounded("hidden", *bounds.HIDDEN)
bounded("runs", 1, 1000, "every run takes --seconds")
STEPS = 8
MEASURED = (
    "measured",  # [s] between merges
    "predicted",
    "least",  # predicted with the least and the most contention
    "most",
    "waiting",
    "target",  # [s]
    "replay",
    "examples_per_second",
)


def strategies() -> dict[str, hj.Strategy]:
    common: dict[str, Any] = {
        "batch_size": FLAGS.batch_size,
        "learning_rate": FLAGS.learning_rate,
    }
    biased = hj.biased_local_sgd(
        **common, momentum=0.0, local_steps=f"measured:{STEPS}"
    )
    table = {
        "local_sgd": hj.local_sgd(**common, momentum=0.0, local_steps=STEPS),
        "biased_local_sgd": biased,
        "adaptive_sgd": hj.adaptive_sgd(
            batch_size=FLAGS.batch_size,
            learning_rate=FLAGS.learning_rate,
            mega_batch=20 * FLAGS.batch_size,
        ),
        "eamsgd": hj.eamsgd(**common, momentum=0.5),
    }
    unknown = set(FLAGS.strategies) - set(table)
    if unknown:
        raise ValueError(f"--strategies: some of {', '.join(table)}")
    return {name: table[name] for name in FLAGS.strategies or table}


def gap(history: hj.History) -> float:
    """Median seconds between merges of the model."""
    times = history.merge_times
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    return median(gaps) if gaps else math.nan


def run_all(
    task: hj.Task,
    data: hj.data.Dataset,
    machine: Any,
    profiles: dict[str, hj.machine.Machine],
) -> dict[str, Any]:
    """Run every strategy on real devices and simulated, --runs times in turn."""
    common: dict[str, Any] = {"seconds": FLAGS.seconds, "num_evals": 240}
    table = strategies()
    found: dict[str, dict[str, list[float]]] = {
        name: {k: [] for k in MEASURED} for name in table
    }
    alone: list[hj.History] = []
    fast = machine.subset([machine.workers[0].name])
    single = hj.sequential_sgd(
        batch_size=FLAGS.batch_size, learning_rate=FLAGS.learning_rate
    )
    for number in range(FLAGS.runs):
        history = hj.train(
            task, data, fast, single, seed=number, progress=False, **common
        )
        alone.append(history)
        for name, strategy in table.items():
            profile = profiles[name]
            extremes = profile.extremes() or (profile, profile)
            real, virtual = (
                hj.train(task, data, m, strategy, seed=number, progress=False, **common)
                for m in (machine, profile)
            )
            again = hj.replay(real.trace, progress=False)
            row = found[name]
            row["measured"].append(gap(real))
            row["predicted"].append(gap(virtual))
            for end, machine_there in zip(("least", "most"), extremes, strict=True):
                there = virtual
                if machine_there is not profile:  # two speeds are possible
                    there = hj.train(
                        *(task, data, machine_there, strategy),
                        seed=number,
                        progress=False,
                        **common,
                    )
                row[end].append(gap(there))
            row["waiting"].append(real.waiting_share())
            row["target"].append(real.seconds_to(FLAGS.target))
            row["examples_per_second"].append(speed(real))
            row["replay"].append(float(again.replayed == "equal"))
            print(f"run {number}, {name}: {real!r}", file=sys.stderr)
            if FLAGS.out and not number:
                save(real, name)
    raw = {n: {k: median(v) for k, v in row.items()} for n, row in found.items()}
    for name, row in found.items():
        raw[name]["replay"] = min(row["replay"])
    raw["alone"] = {
        "target": median(h.seconds_to(FLAGS.target) for h in alone),
        "examples_per_second": median(map(speed, alone)),
    }
    return raw


def speed(history: hj.History) -> float:
    return history.evals[-1]["examples"] / history.duration


def advised(task: hj.Task, data: hj.data.Dataset, profile: hj.machine.Machine) -> Any:
    """The predictions of `advise`: for the fast worker alone, and for all workers."""
    names = [w.name for w in profile.workers]
    single = hj.sequential_sgd(
        batch_size=FLAGS.batch_size, learning_rate=FLAGS.learning_rate
    )
    advice = hj.advise(
        task,
        data,
        profile,
        strategies={"alone": single, **strategies()},
        target=FLAGS.target,
        seconds=FLAGS.seconds,
        subsets=[names[:1], names],
        progress=False,
    )
    print(advice, file=sys.stderr)
    chosen = [
        c for c in advice.choices if (len(c.workers) == 1) == (c.strategy == "alone")
    ]
    return {
        c.strategy: {
            "target": c.seconds_to_target,
            "examples_per_second": c.examples_per_second,
            "waiting": c.waiting,
        }
        for c in chosen
    }


def save(history: hj.History, name: str) -> None:
    folder = Path(FLAGS.out)
    folder.mkdir(parents=True, exist_ok=True)
    end = min(history.duration, 1.0)
    hj.plot.timeline(history, window=(end - 0.4, end)).savefig(folder / f"{name}.png")
    hj.plot.chrome_trace(history, folder / f"{name}.json")


def ratios(raw: dict[str, Any], advice: dict[str, Any]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, row in raw.items():
        key = "examples_per_second"
        found[f"advice/{name}"] = round(row[key] / advice[name][key], 3)
        if name == "alone":
            continue
        low, high = sorted((row["least"], row["most"]))
        closest = min(max(row["measured"], low), high)
        error = abs(closest / row["measured"] - 1)
        longer = row["target"] / raw["alone"]["target"]
        found[f"prediction_error/{name}"] = round(error, 3)
        found[f"range/{name}"] = round(high / low, 3)
        found[f"time_to_target/{name}"] = round(longer, 3) if longer == longer else None
        found[f"waiting/{name}"] = round(row["waiting"], 3)
        found[f"replay/{name}"] = row["replay"]
    return found


def main() -> None:
    strategies()  # refuse a wrong name before anything is measured
    cpus = sum(name.startswith("cpu") for name in FLAGS.devices)
    jax.config.update("jax_num_cpu_devices", max(1, cpus))
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    machine = hj.local_machine(FLAGS.devices, slowdown=(1.0, FLAGS.slowdown))
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=FLAGS.hidden), data)
    sizes = [max(1, FLAGS.batch_size // k) for k in (8, 4, 2, 1)]

    def calibrated(update: hj.local.LocalUpdate) -> hj.machine.Machine:
        given: dict[str, Any] = {"batch_sizes": sizes, "local_steps": (1, STEPS)}
        return hj.calibrate(
            task, data, machine, local_update=update, progress=False, **given
        )

    profile = calibrated(hj.local.sgd())
    about = profile.calibration
    assert about is not None
    profiles = dict.fromkeys(strategies(), profile)
    if "eamsgd" in profiles:  # its steps have momentum, and take longer
        profiles["eamsgd"] = calibrated(strategies()["eamsgd"].local)
    raw, advice = run_all(task, data, machine, profiles), advised(task, data, profile)
    result = {
        "ratios": ratios(raw, advice),
        "measured": raw,
        "advised": advice,
        "calibration": {
            "median_error": about.error,
            "worst": about.worst,
            "contention": {w.name: round(w.contention, 3) for w in profile.workers},
            "contention_range": {w.name: w.contention_range for w in profile.workers},
            "noise": round(profile.noise, 4),
        },
    }
    print(json.dumps(plain(result), indent=2))


if __name__ == "__main__":
    scripts.run(main)
