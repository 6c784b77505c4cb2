"""Host time of an update on the virtual clock: both players, and hand-written.

    python experiments/benchmarks/virtual.py                         (three minutes)
    python experiments/benchmarks/virtual.py --jobs=digits --strategies=async_sgd
    python experiments/benchmarks/virtual.py --grid=4,20 --strategies= (grids alone)

A job is a model and its data, on a simulated machine: the default one of
experiments/compare.py (an MLP 64-128-10 on shifted digits, v100x3+k80); the same digits
with 32 hidden units on 64 equal workers; an MLP 784-128-64-10; a small convolutional
network; an MLP for 159 labels of sparse inputs, of bibtex's size. Batches have 32
examples. An update is a local step of one worker; the local rounds of `local_sgd` have
32 steps on four workers, and 8 on more.

Contenders: "compiled" and "reference" are hetjax's two players, each a run's
`history.host_seconds` by its updates. That holds all that a run does on the host and
its devices but compilation: events and policies, sampling, batches, steps, merges,
records, its set-up, and evaluations (two on 32 test examples, one on all of them). By
hand, "dispatch" is a compiled program per arrival (`async_sgd`) or step (`local_sgd`)
on batches that are ready, "scan" a single program that gathers them on the device.
Neither simulates, records, checks for NaN, or evaluates; arrivals are in the order of
hetjax's run. They must end with the same parameters as each other, which is checked
first. "writing" is the tape without a player: microseconds of an event, of which an
update of `async_sgd` has two. The contenders take turns.

With --grid=N, N runs that differ in their learning rates are trained as one program:
"N runs / one" of "grid" is their seconds by those of a single run.

One JSON object on standard output: "ratios" (medians over the turns), and
"us_per_update" (medians of all contenders).
"""

import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.benchmarks import local_sgd_peers, turns, virtual_manual
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded, check_some_of
from hetjax.api.plan import virtual_run, virtual_times
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.runs_at_once import ComparedRun, run_all
from hetjax.api.session import Session

STRATEGIES = (
    *("async_sgd", "easgd", "ad_psgd", "adaptive_sgd"),
    *("local_sgd", "sync_sgd", "hier_sgd", "sma"),
)
BY_HAND = ("async_sgd", "local_sgd")
BATCH, LEARNING_RATE = 32, 0.3  # those of compare.py
REPEATS = 5  # of a hand-written run within a turn: one takes a few hundredths of 1 s
EVENTS = 20_000  # of a tape that is written alone
FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 3, "measured runs of each contender")
flags.DEFINE_integer("updates", 2000, "updates of a run, about")
flags.DEFINE_list("strategies", list(STRATEGIES), "some of the strategies")
flags.DEFINE_list("jobs", ["digits", "digits64"], "some of the jobs")
flags.DEFINE_list("grid", [], "numbers of learning rates that are trained together")
bounded("turns", 1, 1000, "every turn is run")
bounded("updates", 1, 10_000_000, "every update is run")

Measured = Callable[[], float]  # trains, and returns the seconds of an update


class Job(NamedTuple):
    """A machine, a model and its data, and the settings that fit them."""

    machine: str  # a preset
    data: Callable[[], hj.data.Dataset]
    model: Any
    local_steps: int  # of local_sgd
    levels: tuple[int, ...]  # of hier_sgd
    sizes: tuple[int, ...] = ()  # of an MLP with hand-written contenders
    rate: float = LEARNING_RATE

    def strategy(self, name: str) -> hj.Strategy:
        """The strategy of that name, with its defaults where the job has no setting."""
        own: dict[str, Any] = {
            "local_sgd": {"local_steps": self.local_steps},
            "hier_sgd": {"levels": self.levels, "local_steps": (4, 16)},
        }.get(name, {})
        make = hj.STRATEGIES[name]
        return make(batch_size=BATCH, learning_rate=self.rate, **own)


def _digits() -> hj.data.Dataset:
    return hj.data.digits(shift=1)


def _images() -> hj.data.Dataset:
    return local_sgd_peers.make_data("mlp", 0)


def _pixels() -> hj.data.Dataset:
    return local_sgd_peers.make_data("cnn", 0)


def _labels() -> hj.data.Dataset:
    return hj.data.synthetic_xmc(features=1836, labels=159)


_OLD, _ALIKE = "v100x3+k80", "uniform:64"
JOBS = {  # on 64 workers, 2,000 updates would be a single round of 32 steps
    "digits": Job(_OLD, _digits, hj.models.mlp(hidden=128), 32, (2,), (64, 128, 10)),
    "digits64": Job(_ALIKE, _digits, hj.models.mlp(hidden=32), 8, (8,), (64, 32, 10)),
    "mlp784": Job(
        _OLD,
        _images,
        hj.models.mlp(hidden=(128, 64)),
        32,
        (2,),
        local_sgd_peers.SIZES,
        0.01,
    ),
    "mlp784x64": Job(
        _ALIKE,
        _images,
        hj.models.mlp(hidden=(128, 64)),
        8,
        (8,),
        local_sgd_peers.SIZES,
        0.01,
    ),
    "cnn": Job(
        _OLD,
        _pixels,
        hj.models.lenet(image=(28, 28, 1)),
        32,
        (2,),
        rate=0.01,
    ),
    "xmc": Job(_OLD, _labels, hj.models.sparse_mlp(hidden=128), 32, (2,), rate=0.1),
}


class Setting(NamedTuple):
    """The common settings of a job's runs."""

    job: Job
    task: hj.Task
    data: hj.data.Dataset

    def seconds(self, name: str) -> float:
        """The virtual seconds of a strategy's run."""
        machine = hj.machine.preset(self.job.machine)
        shapes = jax.eval_shape(self.task.init, jax.random.key(0))
        epochs = FLAGS.updates * BATCH / len(self.data.train)
        strategies = {name: self.job.strategy(name)}
        return virtual_times(self.data, machine, strategies, epochs, shapes)[name][0]

    def train(self, name: str, seconds: float, *, compiled: Any) -> hj.History:
        """A run of a strategy."""
        return hj.train(
            self.task,
            self.data,
            hj.machine.preset(self.job.machine),
            self.job.strategy(name),
            seconds=seconds,
            num_evals=1,
            eval_examples=BATCH,
            progress=False,
            compiled=compiled,
        )


def players(setting: Setting, name: str) -> tuple[dict[str, Measured], hj.History]:
    """hetjax's contenders, and a history of the first run of one, which compiles."""
    seconds, found = setting.seconds(name), {}
    contenders: dict[str, Measured] = {}
    for who, compiled in (("compiled", "auto"), ("reference", False)):

        def run(compiled: bool | str = compiled) -> float:
            history = setting.train(name, seconds, compiled=compiled)
            return history.host_seconds / history.evals[-1]["updates"]

        found[who] = setting.train(name, seconds, compiled=compiled)
        contenders[who] = run
    played = found["compiled"].played
    if played != "compiled":  # both are the same player
        print(f"{name}: {played}", file=sys.stderr)
        del contenders["compiled"]
    return contenders, found["compiled"]


def by_hand(setting: Setting, name: str, history: hj.History) -> dict[str, Measured]:
    """Both hand-written contenders, with the arrivals or rounds of hetjax's run."""
    job, data = setting.job, setting.data
    workers = [worker.name for worker in hj.machine.preset(job.machine).workers]
    start = virtual_manual.Start(
        local_sgd_peers.mlp_init(jax.random.key(0), job.sizes),
        data.train,
        len(workers),
        job.rate,
    )
    arrived = [workers.index(e.worker) for e in history.log if e.what == "arrival"]
    if name == "async_sgd":
        shape = (len(arrived),)
    else:
        rounds = max(1, len(arrived) // len(workers))
        shape = (rounds, len(workers), job.local_steps)
    rng = np.random.default_rng(0)
    rows = rng.integers(len(data.train), size=(*shape, BATCH), dtype=np.int32)
    if name == "async_sgd":
        order = np.array(arrived, np.int32)
        contenders = virtual_manual.async_sgd(start, order, rows)
    else:
        contenders = virtual_manual.local_sgd(start, rows)
    virtual_manual.check_equal(contenders)

    def timed(train: Callable[[], Any]) -> Measured:
        def once() -> float:
            began = time.perf_counter()
            jax.block_until_ready(train())
            return (time.perf_counter() - began) / math.prod(shape)

        return lambda: median(once() for _ in range(REPEATS))

    return {way: timed(train) for way, train in contenders.items()}


def writing(setting: Setting, name: str) -> Measured:
    """The seconds of an event of a tape without a player."""
    strategy, machine = (
        setting.job.strategy(name),
        hj.machine.preset(setting.job.machine),
    )

    def run() -> float:
        shapes = jax.eval_shape(setting.task.init, jax.random.key(0))
        events = virtual_run(strategy, machine, setting.data, shapes)
        began = time.process_time()
        number = sum(1 for _ in itertools.islice(events, EVENTS))
        return (time.process_time() - began) / number

    return run


def grid(setting: Setting, number: int) -> Measured:
    """The seconds of an update of runs of `async_sgd`, one for each learning rate."""
    strategy, seconds = setting.job.strategy("async_sgd"), setting.seconds("async_sgd")
    session = Session(
        setting.task,
        setting.data,
        hj.machine.preset(setting.job.machine),
        RunConfig(
            seconds=seconds,
            num_evals=1,
            eval_examples=BATCH,
        ),
    )
    rates = np.geomspace(setting.job.rate / 3, setting.job.rate, number).tolist()
    runs = [
        ComparedRun(f"{rate:g}", strategy._replace(learning_rate=rate), 0, {})
        for rate in rates
    ]

    def run() -> float:
        bar = ProgressBar(number * seconds, number, shown=False)
        histories = [h for found in run_all(session, runs, bar) for h in found]
        total = sum(h.host_seconds for h in histories)
        return total / histories[0].evals[-1]["updates"]

    run()  # which compiles
    return run


def measure(name: str, strategies: list[str]) -> dict[str, dict[str, list[float]]]:
    """Seconds of an update, by strategy and contender, turn by turn."""
    job = JOBS[name]
    data = job.data()
    setting = Setting(job, hj.classification(job.model, data), data)
    contenders: dict[str, dict[str, Measured]] = {}
    for strategy in strategies:
        found, history = players(setting, strategy)
        hands = job.sizes and strategy in BY_HAND
        others = by_hand(setting, strategy, history) if hands else {}
        tape = {"writing": writing(setting, strategy)}
        contenders[strategy] = {**found, **others, **tape}
        print(f"{name}: {strategy} is compiled", file=sys.stderr)
    if FLAGS.grid:
        numbers = [1, *bounds.numbers("grid", FLAGS.grid)]
        contenders["grid"] = {str(int(n)): grid(setting, int(n)) for n in numbers}
    measured = {key: {who: [] for who in of} for key, of in contenders.items()}
    for turn in range(FLAGS.turns):
        for key, of in contenders.items():
            for who, run in of.items():
                measured[key][who].append(run())
        print(
            f"{name}: turn {turn + 1} of {FLAGS.turns}: "
            f"{ {key: microseconds(of) for key, of in measured.items()} }",
            file=sys.stderr,
        )
    return measured


def microseconds(found: dict[str, list[float]]) -> dict[str, float]:
    """The medians over the turns so far [us]."""
    return {who: round(1e6 * median(seconds), 1) for who, seconds in found.items()}


def ratios(of: dict[str, list[float]]) -> dict[str, float]:
    """The compared contenders of a strategy, or of the grids."""
    pairs = {
        "compiled / scan": ("compiled", "scan"),
        "reference / compiled": ("reference", "compiled"),
        **{f"{n} runs / one": (n, "1") for n in of if n.isdigit() and n != "1"},
    }
    return {
        name: round(turns.ratio(of[a], of[b]), 2)
        for name, (a, b) in pairs.items()
        if a in of and b in of
    }


def main() -> None:
    strategies = [name for name in FLAGS.strategies if name]
    if strategies:
        check_some_of("strategies", strategies, STRATEGIES)
    check_some_of("jobs", FLAGS.jobs, list(JOBS))
    found = {name: measure(name, strategies) for name in FLAGS.jobs}
    result = {
        "ratios": {
            name: {key: ratios(of) for key, of in measured.items()}
            for name, measured in found.items()
        },
        "us_per_update": {
            name: {key: microseconds(of) for key, of in measured.items()}
            for name, measured in found.items()
        },
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    scripts.run(main)
