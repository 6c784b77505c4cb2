"""Train one model with several strategies on one machine, and compare them.

    python experiments/compare.py                                   (half a minute)
    python experiments/compare.py --data=DIR --batch_size=64 --learning_rate=2
    python experiments/compare.py --data=mine:load                  (mine.py is yours)
    python experiments/compare.py --data=synthetic_xmc --strategies=adaptive_sgd
    python experiments/compare.py --data=DIR --model=linear --commonest_labels=1000
    python experiments/compare.py --all                             (two minutes)
    python experiments/compare.py --flagfile=FILE --plan            (predict the cost)
    python experiments/compare.py --machine=local --cpu_devices=2 --slowdown=cpu:1=3
    python experiments/compare.py --machine=mesh --cpu_devices=4 --workers_per_device=2
    python experiments/compare.py --machine=cluster --local_workers=3
    python experiments/compare.py --failure_rate=0.2 --repair=0.5

The default trains on scikit-learn's handwritten digits, each at nine positions, on the
simulated machine v100x3+k80: three equal GPUs and one that is 3.6 times slower;
experiments/README.md explains this choice. For each kind of strategy there is one with
equal rounds, and one that takes account of the workers' speeds. It prints a table and
writes results.json, results.csv, plots (of batch sizes, if they change), and
report.html, a page with all of these, to the folder results, or to --out. All runs are
stored there, too: the same command again does only the missing runs. If results holds
runs of other settings, the folder is results-2, and so on.

DIR holds train.txt[.gz] and test.txt[.gz] in XMC text or multi-label libSVM, or
train.libsvm and test.libsvm, or images. FILE is libSVM, its test split FILE.t. Image
data sets by name (mnist, ...) are read from $HETJAX_DATA, or downloaded.
--data=mine:load is the function load() of the module mine, which returns a
hetjax.data.Dataset; if its y are numbers instead of classes, the task is regression.
--model=linear is the baseline to try first on sparse text. Machines of other models
(v100x4-amazon670k, ...) are scaled to the chosen model by --scale_machine.
On a simulated machine, workers come and go by a file (--presence=FILE) or by chance
(--mean_on, --mean_off), and fail (--failure_rate, --repair).
With --machine=local the strategies run on this host's own devices, in real seconds, and
a trace of each run is written to the folder traces in that of the results. With
--machine=mesh all workers run as one program, on devices of one kind; auto uses a mesh
for the strategies that can run on one. With --machine=cluster the workers are those of
the Ray cluster of this machine (`ray start`, or --address), or of one that
--local_workers=3 starts.
"""

import functools
import itertools
import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.common import (
    availability_flags,
    bounds,
    cluster,
    data_flags,
    local_devices,
    model_flags,
    named_data,
    out_folder,
    player_flags,
    schedules,
    scripts,
)
from experiments.common.bounds import bounded
from experiments.common.strategy_flags import build_strategies
from hetjax import tree
from hetjax.api import OtherRun
from hetjax.api.plan import virtual_times
from hetjax.report import RUNS, check_out, write_results

FLAGS = flags.FLAGS
ENOUGH = 1.02  # times the planned seconds, since step times vary
# one device; equal rounds, each followed by a strategy that uses the workers' speeds
DEFAULT = (
    "sequential_sgd",
    *("sync_sgd", "async_sgd"),
    *("elastic_sgd", "adaptive_sgd"),
    *("local_sgd", "biased_local_sgd"),
)

flags.DEFINE_string(
    "machine",
    "v100x3+k80",
    "a preset, a machine's JSON file, local, mesh, auto, or cluster",
)
flags.DEFINE_list("strategies", list(DEFAULT), "names, separated by commas")
flags.DEFINE_boolean("all", False, "run every strategy in hetjax.STRATEGIES")
flags.DEFINE_float(
    "seconds", 4.0, "virtual seconds of a run; with --epochs, by default enough"
)
flags.DEFINE_boolean(
    "plan", False, "print the runs' predicted cost, for --epochs or one, and stop"
)
flags.DEFINE_integer("num_evals", 50, "evaluations of a run, after the initial one")
flags.DEFINE_enum(
    "output", "auto", hj.output.LAYERS, "how an output layer for many labels is trained"
)
flags.DEFINE_integer(
    "eval_examples", None, "test examples of an evaluation; all of them at the end"
)
flags.DEFINE_integer("seeds", 1, "runs per strategy, with seeds 0, 1, ...")
flags.DEFINE_integer("batch_size", 32, "batch size (the largest, if it adapts)")
flags.DEFINE_float("learning_rate", 0.3, "learning rate at --batch_size")
flags.DEFINE_list(
    "learning_rates", [], "learning rates to choose from, on held-out data"
)
flags.DEFINE_string("tune", "common", "one learning rate for all: common; or each")
flags.DEFINE_float("target", None, "metric to reach; default 97 % of the best")
flags.DEFINE_string("model", "mlp", "mlp, linear, lenet, resnet20, vgg16, ...")
flags.DEFINE_boolean(
    "scale_machine",
    False,
    "scale a machine ...-amazon670k, whose steps are those of 1,024 examples and whose "
    "merges are those of 412 MB, to --batch_size and the model",
)
flags.DEFINE_integer("hidden", 128, "hidden units of an mlp")
flags.DEFINE_multi_string("set", [], "one strategy's setting: adaptive_sgd.delta=0.2")
flags.DEFINE_float("noise", None, "noise of step times, instead of the machine's")
flags.DEFINE_string(
    "out", None, "folder of the results; default: results, results-2, ..."
)
flags.DEFINE_boolean("overwrite", False, "replace the results in --out, or in results")
flags.DEFINE_string("every", "60s", "when to save a run in --out: 10min, 5 evals, ...")
bounded("num_evals", *bounds.EVALS)
bounded("eval_examples", 1, 2**31 - 1, "an evaluation needs examples")
bounded("seeds", *bounds.SEEDS)
bounded("hidden", *bounds.HIDDEN)


def refuse_flags_of_others() -> None:
    """Raise a ValueError for a flag that this kind of machine would ignore."""
    local, on_cluster = (
        FLAGS.machine in local_devices.MACHINES,
        FLAGS.machine == "cluster",
    )
    here = local or on_cluster
    kinds = {
        "a simulated machine": (
            {"noise", "plan", *player_flags.NAMES, *availability_flags.NAMES},
            not here,
        ),
        "a machine whose name ends in -amazon670k": (
            {"scale_machine"},
            FLAGS.machine.endswith("-amazon670k"),
        ),
        "one machine": ({"workers_per_device"}, not on_cluster),
        "--machine=cluster": (set(cluster.OWN), on_cluster),
        "devices of one's own": ({"slowdown", "step_mode"}, here),
        "devices of this host": ({"devices", "cpu_devices"}, not on_cluster),
    }
    for kind, (names, fits) in kinds.items():
        for name in sorted(names):
            if FLAGS[name].present and not fits:
                raise ValueError(
                    f"--{name} is for {kind}, not --machine={FLAGS.machine}"
                )
    if here and FLAGS.epochs is not None and not FLAGS["seconds"].present:
        raise ValueError(
            f"--epochs: on --machine={FLAGS.machine} pass --seconds, too, after which "
            "a run ends at the latest"
        )


def setting() -> tuple[hj.Task, hj.data.Dataset, Any, dict[str, hj.Strategy]]:
    """Task, data, machine and strategies: all that does not depend on the folder."""
    refuse_flags_of_others()
    if FLAGS.machine == "cluster":
        machine = cluster.machine()
    elif FLAGS.machine in local_devices.MACHINES:
        machine = local_devices.machine(local_devices.MACHINES[FLAGS.machine])
    else:
        local_devices.divide_cpu()
        machine = hj.machine.load_machine(FLAGS.machine, noise=FLAGS.noise)
    rate = schedules.learning_rate(FLAGS.learning_rate)
    if FLAGS.learning_rates and rate != FLAGS.learning_rate:
        raise ValueError("--learning_rates chooses constant rates: pass no schedule")
    strategies = build_strategies(names(), FLAGS.set, FLAGS.batch_size, rate)
    data = data_flags.load_data()
    if FLAGS.dirichlet is not None:
        strategies = data_flags.with_shards(strategies, data)
    for note in data.notes:
        print(f"{data.name}: {note}", file=sys.stderr)
    task = named_data.task(
        FLAGS.model, data, FLAGS.hidden, FLAGS.output, model_flags.inputs()
    )
    if isinstance(machine, hj.machine.Machine):
        known = FLAGS.epochs is None or FLAGS["seconds"].present
        machine = availability_flags.with_availability(
            _fitted(machine, task), FLAGS.seconds if known and not FLAGS.plan else None
        )
    return task, data, machine, strategies


def _fitted(machine: hj.machine.Machine, task: hj.Task) -> hj.machine.Machine:
    """The machine with --workers_per_device, scaled to the task's model if asked."""
    if FLAGS.machine.endswith("-amazon670k"):
        said = f"{machine.name}: steps of 1,024 examples and merges of 412 MB"
        if FLAGS.scale_machine:
            machine = hj.machine.like_amazon670k(
                machine.name,
                batch_size=FLAGS.batch_size,
                num_bytes=_num_bytes(task),
                noise=machine.noise,
            )
            said += f", scaled to {machine.name.partition(', ')[2]}"
        else:
            said += "; --scale_machine scales them to --batch_size and the model"
        print(said, file=sys.stderr)
    if FLAGS.workers_per_device > 1:
        machine = machine.with_workers_per_device(FLAGS.workers_per_device)
    return machine


def _num_bytes(task: hj.Task) -> int:
    return tree.num_bytes(jax.eval_shape(task.init, jax.random.key(0)))


def check_plan() -> None:
    """Raise a ValueError unless the flags name runs that can be planned.

    Without --epochs one is assumed, with a message.
    """
    if FLAGS.machine in (*local_devices.MACHINES, "cluster"):
        raise ValueError(
            f"--plan is for a simulated machine, not --machine={FLAGS.machine}; it "
            "times steps on this host as well"
        )
    if FLAGS["seconds"].present:
        raise ValueError("--plan is of all --epochs: pass no --seconds, which end runs")
    if FLAGS.epochs is None:
        FLAGS.epochs = 1.0
        print("--plan without --epochs: of one pass over the data", file=sys.stderr)


def durations(setting: tuple[Any, ...]) -> float | dict[str, float]:
    """Seconds of runs: --seconds, or virtual ones that suffice for --epochs, by name.

    Learning rates are chosen after the same seconds, those of the slowest strategy.
    """
    if FLAGS.epochs is None or FLAGS["seconds"].present:
        return FLAGS.seconds
    task, data, machine, strategies = setting
    model = jax.eval_shape(task.init, jax.random.key(0))
    found = virtual_times(data, machine, strategies, FLAGS.epochs, model)
    times = {name: ENOUGH * seconds for name, (seconds, _) in found.items()}
    return max(times.values()) if FLAGS.learning_rates else times


def names() -> list[str]:
    """The strategies' names."""
    if FLAGS.all and FLAGS["strategies"].present:
        raise ValueError("--all and --strategies: pass one of them")
    if FLAGS["tune"].present and not FLAGS.learning_rates:
        raise ValueError("--tune chooses among --learning_rates: pass them, too")
    twice = {n for n in FLAGS.strategies if FLAGS.strategies.count(n) > 1}
    if twice:
        raise ValueError(f"--strategies: {', '.join(sorted(twice))} is there twice")
    return list(hj.STRATEGIES) if FLAGS.all else FLAGS.strategies


def check_tuned(results: Path) -> None:
    """Raise an OtherRun if only the runs there, or only these, choose learning rates.

    They are stored under other names, so that `hj.compare` would accept both.
    """
    if not results.exists():
        return
    chosen = json.loads(results.read_text(encoding="utf-8"))["tuning"] is not None
    if chosen != bool(FLAGS.learning_rates):
        how = "chosen" if chosen else "given"
        raise OtherRun(f"{results} is of {how} learning rates", ": pass another --out")


def compare(out: Path, setting: Callable[[], Any]) -> tuple[hj.Comparison, list[Path]]:
    """Do the missing runs of a folder, print the table, and write the results there.

    Errors: OtherRun or FileExistsError if it holds other runs, before any run begins;
    OSError if not all could be written, after the table.
    """
    check_out(
        out, FLAGS.overwrite, list(itertools.product(names(), range(FLAGS.seeds)))
    )
    if FLAGS.out is None and not FLAGS.overwrite:
        check_tuned(out / "results.json")
    real = FLAGS.machine in (*local_devices.MACHINES, "cluster")
    recorded = FLAGS.machine in ("local", "cluster")
    comparison = _run(
        *setting(),
        seconds=durations(setting()),
        epochs=FLAGS.epochs,
        seeds=FLAGS.seeds,
        num_evals=FLAGS.num_evals,
        eval_examples=FLAGS.eval_examples,
        target=FLAGS.target,
        learning_rates=bounds.numbers("learning_rates", FLAGS.learning_rates),
        tune=FLAGS.tune,
        traces=out / "traces" if recorded else None,
        devices=None if real else FLAGS.devices or None,
        **player_flags.settings(),
        out=out / RUNS,
        every=FLAGS.every,
        resume="never" if FLAGS.overwrite else "auto",
    )
    print(comparison.table(), flush=True)  # first: the disk may be full
    overwrite = FLAGS.overwrite or comparison.interrupted
    command = shlex.join(["python", "experiments/compare.py", *sys.argv[1:]])
    return comparison, write_results(
        comparison, out, overwrite=overwrite, command=command
    )


def _run(*setting: Any, **settings: Any) -> hj.Comparison:
    """`hj.compare`; if a folder cannot be written, print the runs so far, too."""
    try:
        return hj.compare(*setting, **settings)
    except OSError as error:
        if histories := getattr(error, "histories", None):
            print(hj.Comparison(histories, data={}, machine={}).table(), flush=True)
        raise


def main() -> int:
    if FLAGS.plan:
        check_plan()
        print(hj.plan(*setting(), epochs=FLAGS.epochs, devices=FLAGS.devices or None))
        return 0
    once = functools.cache(setting)
    comparison, paths = out_folder.in_folder(FLAGS.out, partial(compare, setting=once))
    print("wrote " + ", ".join(str(path) for path in paths))
    return scripts.status_of(comparison.signal) if comparison.interrupted else 0


if __name__ == "__main__":
    scripts.run(main)
