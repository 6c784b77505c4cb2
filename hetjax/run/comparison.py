"""Comparisons: several strategies and seeds on one task, one machine and one budget."""

import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

from hetjax.data.dataset import Dataset
from hetjax.machine import Machine
from hetjax.report.history import History
from hetjax.report.runs import Runs
from hetjax.run.bench import Bench, check_seed, check_strategy
from hetjax.run.held_out import num_held_out, split_off
from hetjax.run.local import LocalMachine
from hetjax.run.loop import INTERRUPTED
from hetjax.run.progress import Progress
from hetjax.strategies.types import Strategy
from hetjax.task.types import Task

TUNE = ("common", "each")


def compare(
    task: Task,
    data: Dataset,
    machine: Machine | LocalMachine,
    strategies: Mapping[str, Strategy],
    *,
    seconds: float,
    seeds: int | Sequence[int] = 1,
    points: int = 50,
    epochs: float | None = None,
    target: float | None = None,
    rates: Sequence[float] = (),
    tune: str = "common",
    traces: str | Path | None = None,
    progress: bool = True,
    on_history: Callable[[History], object] | None = None,
) -> Runs:
    """Run every strategy with every seed for the same seconds.

    They are virtual ones, or real ones on a `local_machine`: then traces are written to
    the folder `traces`, if there is one, and no two runs are alike.

    For one seed all start from the same parameters and draw from the same shuffled
    order, and all are evaluated at the same instants. `seeds` is a number (0, 1, ...)
    or the seeds themselves. With `rates` the learning rate (at the largest batch size;
    other sizes follow by linear scaling) is chosen first, on a tenth of the training
    split that is held out for it: tune="common" takes the one rate whose best metric
    is highest on average over all strategies (the Adaptive SGD paper's protocol),
    "each" every strategy's own best. A run that turns NaN is stopped, reported and
    kept; the others go on. Ctrl-C stops all and returns what there is
    (KeyboardInterrupt if that is nothing). `epochs` ends a run before its seconds are
    over, at the first evaluation behind so many passes over the training data.
    """
    if isinstance(seeds, numbers.Integral):
        seeds = range(int(seeds))
    seeds = tuple(seeds)  # pyright: ignore[reportArgumentType]
    _check(strategies, seeds, rates, tune, target, len(data.train))
    bench = Bench(task, data, machine, seconds=seconds, points=points)
    total = len(strategies) * (len(seeds) + len(rates)) * seconds
    if traces and bench.real:
        Path(traces).mkdir(parents=True, exist_ok=True)
    bar = Progress(total, shown=progress, real=bench.real)
    histories: list[History] = []
    tuning, interrupted = None, False
    try:
        if rates:
            tuning = tune_rates(bench, strategies, rates, tune, seeds[0], bar)
            strategies = _with_rates(strategies, tuning["chosen"])
        # seed by seed, so that Ctrl-C leaves something of every strategy
        for seed, name in itertools.product(seeds, strategies):
            strategy = strategies[name]
            if traces and bench.real:
                bench.trace = Path(traces) / f"{name}_{seed}.jsonl"
            histories.append(bench.run(name, strategy, seed, bar, epochs=epochs))
            if on_history:
                on_history(histories[-1])
            interrupted = histories[-1].stopped == INTERRUPTED
            if interrupted:
                break
    except KeyboardInterrupt:  # between two runs, or a second time within one
        if not histories:
            raise
        interrupted = True
    finally:
        bar.close()
    order = list(strategies)
    return Runs(
        sorted(histories, key=lambda h: order.index(h.strategy)),
        data=describe(data),
        machine=described(machine),
        target=target,
        tuning=tuning,
        interrupted=interrupted,
    )


def tune_rates(
    bench: Bench,
    strategies: Mapping[str, Strategy],
    rates: Sequence[float],
    tune: str,
    seed: int,
    bar: Progress,
) -> dict[str, Any]:
    """Choose learning rates on a held-out tenth of the training split.

    {"tune", "held_out", "scores": {strategy: {rate: best metric}}, "chosen":
    {strategy: rate}}. A run that diverged scores minus infinity; the common rate is
    one that most strategies survive, among those the best on average. Ties: the rate
    that was given first.
    """
    held = bench.on(_held_out(bench.data, seed))
    scores = {
        name: {rate: _score(held, name, s, rate, seed, bar) for rate in rates}
        for name, s in strategies.items()
    }
    common = max(
        rates, key=lambda rate: _common_score([s[rate] for s in scores.values()])
    )
    each = {name: max(rates, key=lambda r: s[r]) for name, s in scores.items()}
    chosen = each if tune == "each" else dict.fromkeys(scores, common)
    return {
        "tune": tune,
        "held_out": len(held.data.test),
        "scores": {n: {f"{r:g}": v for r, v in s.items()} for n, s in scores.items()},
        "chosen": chosen,
    }


def _common_score(scores: Sequence[float]) -> tuple[int, float]:
    """How many strategies survive a rate, and how good those are on average."""
    survivors = [s for s in scores if s > -math.inf]
    return len(survivors), mean(survivors) if survivors else -math.inf


def _score(
    held: Bench, name: str, strategy: Strategy, rate: float, seed: int, bar: Progress
) -> float:
    strategy = strategy._replace(rate=rate)
    history = held.run(f"{name}, rate {rate:g}", strategy, seed, bar)
    if history.stopped == INTERRUPTED:
        raise KeyboardInterrupt  # there is no result yet that could be kept
    return -math.inf if history.stopped else history.best()


def _held_out(data: Dataset, seed: int) -> Dataset:
    rest, held = split_off(data.train, seed)
    return replace(data, train=rest, test=held)


def _with_rates(
    strategies: Mapping[str, Strategy], rates: Mapping[str, float]
) -> dict[str, Strategy]:
    return {
        name: s._replace(rate=rates[name], settings={**s.settings, "rate": rates[name]})
        for name, s in strategies.items()
    }


def described(machine: Machine | LocalMachine) -> dict[str, Any]:
    """A machine for the record."""
    if isinstance(machine, Machine):
        return asdict(machine)
    workers = [
        {"name": w.name, "kind": w.kind, "slowdown": w.slowdown}
        for w in machine.workers
    ]
    return {"name": "local", "workers": workers}


def describe(data: Dataset) -> dict[str, Any]:
    """A data set in numbers, for the record."""
    return {
        "name": data.name,
        "train_examples": len(data.train),
        "test_examples": len(data.test),
        "features": data.num_features,
        "classes": data.num_classes,
        "sparse": data.sparse,
        "multilabel": data.multilabel,
        "notes": list(data.notes),
    }


def _check(
    strategies: Mapping[str, Strategy],
    seeds: Sequence[int],
    rates: Sequence[float],
    tune: str,
    target: float | None,
    num_examples: int,
) -> None:
    """ValueErrors before anything is compiled."""
    if not isinstance(strategies, Mapping):
        raise ValueError("strategies must be a dictionary: a name for each strategy")
    if not strategies:
        raise ValueError("there are no strategies to compare: give at least one")
    if not seeds:
        raise ValueError("there are no seeds: give at least one")
    if target is not None and not math.isfinite(target):
        raise ValueError(f"target={target}: give a finite number, or none")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={seeds}: give every seed once")
    for seed in seeds:
        check_seed(seed)
    if tune not in TUNE:
        raise ValueError(f"tune={tune!r}: choose one of {', '.join(TUNE)}")
    if rates:
        num_examples -= num_held_out(num_examples)
    for name, strategy in strategies.items():
        check_strategy(name, strategy, num_examples)
    for rate in rates:
        if not (rate > 0 and math.isfinite(rate)):
            raise ValueError(f"rates has {rate}: give finite numbers above 0")
