"""`advise`: rank workers and strategies by simulation on a measured machine.

Every strategy is simulated on the virtual clock for growing sets of workers, fastest
first, to tell whether a slow worker is worth adding. With a target it also trains
there, so that the progress of the model counts, not only the number of rounds.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from hetjax.api.calibrate import calibrate
from hetjax.api.plan import virtual_run
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.arguments import Count, Positive, Seed, checked, shown
from hetjax.data.batching import nonzeros_per_example
from hetjax.data.dataset import Dataset
from hetjax.machine import Arrival, Machine, Merged, WorkerInfo
from hetjax.machine.types import ROOT
from hetjax.metric_mode import score, worst
from hetjax.report.table import Table, Tabular
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.openers import is_real_machine
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.strategies import (
    adaptive_sgd,
    biased_local_sgd,
    eamsgd,
    local_sgd,
    sequential_sgd,
)
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import check_calibration

EVENTS = 50_000  # simulated for a strategy, at most
POINTS = 100  # evaluations of a choice that trains; times are interpolated
DIGITS = range(3, 7)  # significant digits; the fewest that tell choices apart
ROUNDS = 3  # merges of the model that are simulated, even if they take longer
STEPS = 8  # local steps of the default strategies


class Choice(NamedTuple):
    """A strategy on some of the workers, with its predicted performance."""

    strategy: str
    workers: tuple[str, ...]
    examples_per_second: float
    round_seconds: float  # between merges of the model
    waiting: float  # share of the workers' time without computing
    seconds_to_target: float  # inf if it is not reached, nan without a target
    best: float  # best metric in that time; nan without a target
    final: float  # mean metric over the last tenth of the evaluations, or nan
    local_rounds: dict[str, str]  # by worker: "8 x 32" is 8 steps of 32 examples
    # `round_seconds` with the least and the most contention; () if it hardly varied
    round_range: tuple[float, ...] = ()


@dataclass(frozen=True, repr=False)
class Advice(Tabular):
    """The choices of `advise`, best first."""

    choices: tuple[Choice, ...]
    target: float | None
    metric: str
    machine: str
    seconds: float = 10.0  # simulated for every choice
    interrupted: bool = False  # by Ctrl-C: some choices are missing

    @property
    def best(self) -> Choice:
        """The first choice."""
        return self.choices[0]

    @property
    def verdict(self) -> str:
        """Whether more than one worker is worth it, in a sentence."""
        alone = [c for c in self.choices if len(c.workers) == 1]
        several = [c for c in self.choices if len(c.workers) > 1]
        if not alone or not several:
            return f"{_named(self.best)} is the best of the requested choices"
        one, more = alone[0], several[0]
        if self.target is None:
            gain = more.examples_per_second / one.examples_per_second
            said = f"{gain:.2f} x the examples/s"
            worth = gain > 1
        else:
            seconds = [more.seconds_to_target, one.seconds_to_target]
            if min(seconds) == math.inf:
                both = f"neither {_named(more)} nor {_named(one)}"
                return f"{both} reaches {self.target:g}"
            worth, times = seconds[0] < seconds[1], distinct(seconds)
            said = f"{times[0]} s to {self.target:g} against {times[1]} s"
        answer = "worth it" if worth else "not worth it"
        return f"{_named(more)} against {_named(one)}: {said}: {answer}"

    def table(self) -> Table:
        """Return all choices as a table."""
        choices = self.choices
        columns = {
            "strategy": [c.strategy for c in choices],
            "workers": [
                " + ".join(f"{name} ({c.local_rounds[name]})" for name in c.workers)
                for c in choices
            ],
            "examples/s": [f"{c.examples_per_second:,.0f}" for c in choices],
            "round [ms]": [_milliseconds(c) for c in choices],
            "waiting [%]": [f"{100 * c.waiting:.1f}" for c in choices],
        }
        if self.target is not None:
            times = distinct([c.seconds_to_target for c in choices])
            columns |= {
                f"seconds to {self.target:g}": [
                    "never" if time == "inf" else time for time in times
                ],
                f"best {self.metric}": distinct([c.best for c in choices]),
                f"final {self.metric}": distinct([c.final for c in choices]),
            }
        rounds = "local rounds are steps x batch size"
        caption = [f"predicted for {self.machine}; {rounds}"]
        if self.interrupted:
            caption.append("interrupted: not all choices were tried")
        return Table.of(columns, [*caption, self.verdict])


def distinct(values: Sequence[float]) -> list[str]:
    """Return the numbers as texts, with enough digits to tell different ones apart.

    >>> distinct([1.23456, 1.23451, 8.0]), distinct([0.5, math.inf])
    (['1.2346', '1.2345', '8'], ['0.5', 'inf'])
    """
    texts: list[str] = []
    for digits in DIGITS:
        texts = [f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def _milliseconds(choice: Choice) -> str:
    """Return the time of a round, as a range where two speeds are possible."""
    times = choice.round_range or (choice.round_seconds,)
    return " to ".join(f"{1e3 * time:.3g}" for time in times)


def _named(choice: Choice) -> str:
    return f"{choice.strategy} on {' + '.join(choice.workers)}"


@checked
def advise(
    task: Task,
    data: Dataset,
    machine: Machine | LocalMachine | ClusterMachine,
    *,
    strategies: Mapping[str, Strategy] | None = None,
    batch_size: Count = 64,
    learning_rate: Positive = 0.1,
    target: float | None = None,
    seconds: float = 10.0,
    subsets: Sequence[Sequence[str]] | None = None,
    seed: Seed = 0,
    progress: bool = True,
) -> Advice:
    """Rank strategies and sets of workers by simulation.

    `machine` is one that `calibrate` measured, any other simulated machine, or a real
    one, which is calibrated first. `subsets` are lists of names of workers; by
    default the fastest worker, the two fastest, and so on, and each of the other
    workers alone. `strategies` are by default sequential_sgd, local_sgd,
    biased_local_sgd, adaptive_sgd and eamsgd with this `batch_size` and
    `learning_rate`.

    Predicted for each choice are examples/s, seconds between merges of the model (as a
    range where the calibration found that contention makes two speeds possible),
    waiting, and the local rounds of every worker. With a `target` of the task's metric
    each choice also trains for `seconds` of virtual time, which takes a while, and the
    first to reach the target is the best. Without a target the best choice is the one
    with the most examples/s, whether or not the model learns much from each example.

    After Ctrl-C only the completed choices are returned. Errors: ValueError for invalid
    arguments, a machine that was calibrated with another model, an empty subset, or
    subsets that fit none of the strategies; KeyboardInterrupt if Ctrl-C came before the
    first choice was completed.
    """
    table = strategies or _default(batch_size, learning_rate)
    if not isinstance(machine, Machine) and not is_real_machine(machine):
        raise ValueError(
            f"machine is {shown(machine)}: pass a simulated machine, or a real one"
        )
    config = RunConfig(seconds=seconds, num_evals=POINTS, target=target)
    session = Session(task, data, machine, config)
    session.check_strategies(table)
    if not isinstance(machine, Machine):  # it is calibrated first
        sizes = sorted({max(1, batch_size // k) for k in (1, 2, 4, 8)})
        machine = calibrate(task, data, machine, batch_sizes=sizes, progress=progress)
    check_calibration(machine, task)
    nonzeros = nonzeros_per_example(data.train)
    sets = subsets or _by_speed(machine.worker_infos(nonzeros), batch_size)
    pairs = _pairs(sets, table)
    model = jax.eval_shape(task.init, jax.random.key(0))
    bar = ProgressBar(len(pairs) * seconds, shown=progress and target is not None)
    choices, interrupted = [], False
    try:
        for names, name, strategy in pairs:
            some = machine.subset(names)
            choice = _simulate_choice(name, strategy, data, some, seconds, model)
            ends = [
                _simulate_choice(name, strategy, data, end, seconds, model)
                for end in some.extremes() or ()
            ]
            times = tuple(sorted(end.round_seconds for end in ends))
            choice = choice._replace(round_range=times)
            if target is not None:
                history = session.with_machine(some).run(
                    f"{name} on {len(names)}", strategy, seed, bar
                )
                interrupted = history.interrupted
                if interrupted:
                    break
                choice = choice._replace(
                    seconds_to_target=history.seconds_to(target, interpolated=True),
                    best=history.best(),
                    final=history.final(),
                )
            choices.append(choice)
    finally:
        bar.close()
    if not choices:
        raise KeyboardInterrupt
    choices.sort(key=lambda c: _rank(c, target, task.mode))
    return Advice(
        tuple(choices), target, task.metric, machine.name, seconds, interrupted
    )


def _pairs(
    sets: Sequence[Sequence[str]], table: Mapping[str, Strategy]
) -> list[tuple[Sequence[str], str, Strategy]]:
    """Return (workers, name, strategy): sequential SGD is for one worker only."""
    pairs = [
        (names, name, strategy)
        for names, (name, strategy) in itertools.product(sets, table.items())
        if (strategy.name == "sequential_sgd") == (len(names) == 1)
    ]
    if not pairs:
        raise ValueError(
            "there is nothing to advise on: sequential_sgd is for one worker, the "
            f"others are for several; the strategies are {', '.join(table)}, the "
            f"subsets have {', '.join(str(len(names)) for names in sets)} workers"
        )
    return pairs


def _rank(choice: Choice, target: float | None, mode: str) -> tuple[float, float]:
    if target is None:
        return (-choice.examples_per_second, choice.round_seconds)
    final = choice.final if choice.final == choice.final else worst(mode)
    return (choice.seconds_to_target, -score(final, mode))


def _default(batch_size: int, learning_rate: float) -> dict[str, Strategy]:
    common: dict[str, Any] = {"batch_size": batch_size, "learning_rate": learning_rate}
    return {
        "sequential_sgd": sequential_sgd(**common),
        "local_sgd": local_sgd(**common, local_steps=STEPS),
        "biased_local_sgd": biased_local_sgd(**common, local_steps=f"measured:{STEPS}"),
        "adaptive_sgd": adaptive_sgd(**common, mega_batch=4 * STEPS * batch_size),
        "eamsgd": eamsgd(**common),
    }


def _by_speed(infos: Sequence[WorkerInfo], size: float) -> list[tuple[str, ...]]:
    """Return the fastest worker, the two fastest, ..., then each other one alone."""
    names = [i.name for i in sorted(infos, key=lambda i: (i.seconds(size), i.index))]
    growing = [tuple(names[:n]) for n in range(1, len(names) + 1)]
    return growing + [(name,) for name in names[1:]]


def _simulate_choice(
    name: str,
    strategy: Strategy,
    data: Dataset,
    machine: Machine,
    seconds: float,
    model: Any,
) -> Choice:
    """Simulate a policy on the machine for `seconds`, with the shapes of a model only.

    The choice counts everything up to the last merge of the model in these seconds, or
    up to merge number ROUNDS if that is later. Unfinished rounds do not count.
    """
    run = virtual_run(strategy, machine, data, model)
    examples, merges, busy, duration = 0, 0, 0.0, 0.0
    at_merge = (0, 0.0)  # examples and busy seconds at the last merge
    local_rounds: list[Counter] = [Counter() for _ in machine.workers]
    for event, actions in itertools.islice(run, EVENTS):
        if event is not None and event.time > seconds and merges >= ROUNDS:
            break
        if isinstance(event, Arrival):
            examples += event.local_round.examples
            busy += event.finish - event.start
        if isinstance(event, Merged) and event.node == ROOT:
            merges, duration = merges + 1, event.time
            at_merge = examples, busy
        for worker, local_round in actions.dispatch:
            if local_round.local_steps:
                local_rounds[worker][local_round.local_steps, local_round.size] += 1
    examples, busy = at_merge
    duration = duration or math.inf  # nothing was merged
    used = sum(map(bool, local_rounds)) or 1
    return Choice(
        strategy=name,
        workers=tuple(w.name for w in machine.workers),
        examples_per_second=examples / duration,
        round_seconds=duration / merges if merges else math.inf,
        waiting=max(0.0, 1 - busy / (used * duration)),
        seconds_to_target=math.nan,
        best=math.nan,
        final=math.nan,
        local_rounds={
            worker.name: "{} x {}".format(*counts.most_common(1)[0][0])
            if counts
            else "nothing"
            for worker, counts in zip(machine.workers, local_rounds, strict=True)
        },
    )
