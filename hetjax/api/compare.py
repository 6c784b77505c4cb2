"""Comparisons: several strategies and seeds on one task, one machine and one budget."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import scipy.sparse as sp

from hetjax.api.argument_checks import (
    check_callback,
    check_choice,
    check_folder,
    check_learning_rates,
    check_seconds,
    check_target,
    seeds_of,
)
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.run_folder import RESUME
from hetjax.api.runs_at_once import ComparedRun, run_all
from hetjax.api.session import Session
from hetjax.checkpoint.settings import EVERY, Checkpoint
from hetjax.checkpointable import file_name
from hetjax.data.dataset import Dataset
from hetjax.data.held_out import num_held_out, split_off
from hetjax.engine.placement import Device
from hetjax.engine.programs.sharing import key_of
from hetjax.engine.records.history import History
from hetjax.machine import Machine
from hetjax.metric_mode import score, worst
from hetjax.processes.agreement import is_first
from hetjax.report.comparison import Comparison
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.openers import check_placement
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.strategies.types import PARTS, Strategy
from hetjax.tasks.constant_prediction import constant_metric
from hetjax.tasks.types import Task

TUNE = ("common", "each")
TUNING = "tuning"  # the folder in `out` of the runs that choose learning rates
Keep = Callable[..., dict[str, Any]]
"""keep(name, seed, group="") -> the arguments of `Session.run` that say where a run is
kept; runs of a group share a folder."""


def compare(
    task: Task,
    data: Dataset,
    machine: Machine | LocalMachine | ClusterMachine,
    strategies: Mapping[str, Strategy],
    *,
    seconds: float | Mapping[str, float],
    seeds: int | Sequence[int] = 1,
    num_evals: int = 50,
    eval_examples: int | None = None,
    epochs: float | None = None,
    target: float | None = None,
    learning_rates: Sequence[float] = (),
    tune: str = "common",
    traces: str | Path | None = None,
    devices: Sequence[Device | str] | None = None,
    compiled: bool | str = "auto",
    data_on: str = "auto",
    schedule_seed: int | None = None,
    out: str | Path | None = None,
    every: str = EVERY,
    resume: str = "auto",
    progress: bool = True,
    on_history: Callable[[History], object] | None = None,
) -> Comparison:
    """Run every strategy with every seed for the same number of seconds.

    The seconds are virtual, or wall-clock time on a `local_machine`. They may be a
    dictionary of each strategy's own, such as those that `plan` finds for some epochs;
    each is then evaluated at instants of its own. Real runs differ from one another,
    and each is recorded in the folder `traces` if one is given.
    `devices` are those of this host that simulated workers are spread over, as in
    `train`, which also says what `compiled` and `data_on` are.

    Runs of one seed start from the same parameters, draw from the same shuffled order,
    and are evaluated at the same instants (on `eval_examples` of the test split, if it
    is given, and on all of it at the end, as in `train`). `seeds` is a number of seeds
    (0, 1, ...) or the seeds themselves. With `learning_rates` the learning rate (at the
    largest batch size; other sizes follow by linear scaling) is chosen first, on a
    tenth of the training split that is held out for this (of which `eval_examples` are
    looked at, if it is given): tune="common" takes the one
    learning rate whose metric is best on average over all strategies (the
    Adaptive SGD paper's protocol), "each" the best learning rate of each strategy. What
    counts is the metric at the end (`History.final`), which a user would keep.

    With `out`, a folder, every run is kept in a folder of its own there, those that
    choose learning rates, too: the same call again only does what is missing, and
    `every` and `resume` are those of `train`. Strategies and seeds may be added; a
    setting that has changed is an OtherRun (a ValueError) that names it, before any
    run begins.

    A run that turns NaN is stopped, reported and kept; the other runs go on. `epochs`
    ends a run at the first evaluation after that many passes over the training data.
    Ctrl-C stops the comparison and returns the runs so far (KeyboardInterrupt if there
    are none). `on_history` is called with the history of each run when it ends. An
    exception, of it or of a part of a strategy, holds the runs so far as its attribute
    `histories`.

    Errors: a ValueError that names the argument, before anything is compiled, for a
    request that cannot be met.
    """
    seeds = seeds_of(seeds)
    lasting = seconds_of(seconds, strategies, learning_rates)
    check_choice("tune", tune, TUNE)
    check_learning_rates(learning_rates)
    check_target(target)
    check_folder("traces", traces)
    check_folder("out", out)
    check_choice("resume", resume, RESUME)
    check_callback("on_history", on_history)
    if resume == "must" and out is None:
        raise ValueError('resume="must": pass out, the folder of the runs to continue')
    _ = Checkpoint(out or ".", every=every)  # which checks `every`
    keep = partial(_kept_in, out, every, resume)
    config = RunConfig(
        seconds=max(lasting.values(), default=1.0),  # none: an error says so below
        num_evals=num_evals,
        eval_examples=eval_examples,
        epochs=epochs,
        devices=devices,
        compiled=compiled,
        data_on=data_on,
        schedule_seed=schedule_seed,
    )
    session = Session(task, data, machine, config)
    num_examples = len(data.train)
    if len(learning_rates):
        num_examples -= num_held_out(num_examples)
    session.check_strategies(strategies, num_examples)
    check_placement(machine, strategies, recorded=traces is not None)
    _check_tunable(strategies, learning_rates)
    sessions = {name: session.lasting(time) for name, time in lasting.items()}
    _check_kept(sessions, strategies, learning_rates, seeds, keep)
    repeated = len(seeds) + len(learning_rates)
    total, number = repeated * sum(lasting.values()), repeated * len(strategies)
    traces = traces if session.real and is_first() else None
    if traces:
        Path(traces).mkdir(parents=True, exist_ok=True)
    bar = ProgressBar(total, number, shown=progress, real=session.real)
    histories: list[History] = []
    tuning, signal = None, ""
    try:
        if len(learning_rates):
            tuning = tune_rates(
                session, strategies, learning_rates, tune, seeds[0], bar, keep
            )
            strategies = _with_learning_rates(strategies, tuning["chosen"])
        # seed by seed, so that after Ctrl-C every strategy has some runs; or all seeds
        # that have one schedule together
        groups = [[seed] for seed in seeds] if schedule_seed is None else [list(seeds)]
        families = _families(strategies, sessions)
        for some, names in [(s, n) for s in groups for n in families]:
            own = sessions[names[0]]
            trace = None
            if traces:  # of one run at a time, since real ones are not played together
                trace = Path(traces) / f"{_of_run(names[0], some[0])}.jsonl"
            # adding a strategy may change the rate that is best for all
            runs = [
                ComparedRun(
                    name, s, seed, keep(_rated(name, s) if tuning else name, seed)
                )
                for name, s in ((name, strategies[name]) for name in names)
                for seed in some
            ]
            for found in run_all(own, runs, bar, trace=trace):
                for history in found:
                    histories.append(history)
                    if on_history:
                        on_history(history)
                if found[-1].interrupted:
                    signal = found[-1].signal or "SIGINT"
                    break
            if signal:
                break
    except KeyboardInterrupt as error:  # between two runs, or again within one
        if not histories:
            raise
        signal = str(error) or "SIGINT"  # a script says which one
    except Exception as error:  # of `on_history`, or a part of a strategy
        error.histories = histories  # pyright: ignore[reportAttributeAccessIssue]
        error.add_note("the runs up to this error are its attribute `histories`")
        raise
    finally:
        bar.close()
    order = list(strategies)
    return Comparison(
        sorted(histories, key=lambda h: (order.index(h.strategy), seeds.index(h.seed))),
        data=describe(data),
        machine=machine.record(),
        target=target,
        tuning=tuning,
        signal=signal,
        constant=constant_metric(task, data),
    )


def _check_tunable(
    strategies: Mapping[str, Strategy], learning_rates: Sequence[float]
) -> None:
    """Raise a ValueError for a strategy whose learning rate cannot be chosen."""
    for name, strategy in strategies.items():
        if len(learning_rates) and strategy.settings.get("learning_rate", 0) is None:
            raise ValueError(
                f"{name} has its learning rate in its optimizer, so that none of "
                "learning_rates can be chosen: build the optimizer with learning rate 1"
                " and pass the strategy learning_rate="
            )


def tune_rates(
    session: Session,
    strategies: Mapping[str, Strategy],
    learning_rates: Sequence[float],
    tune: str,
    seed: int,
    bar: ProgressBar,
    keep: Keep = lambda *run: {},
) -> dict[str, Any]:
    """Choose learning rates on a held-out tenth of the training split.

    Returns {"tune", "held_out", "score": "final", "scores": {strategy: {learning rate:
    final metric}}, "chosen": {strategy: learning rate}}, "held_out" being the examples
    of an evaluation (with `eval_examples` not all of them). A run that diverged has the
    worst score, infinite.
    The common learning rate is, among those that most strategies survive, the one that
    is best on average. Of equally good ones the first in `learning_rates` is taken.
    `keep` says where each run is kept.
    """
    held = session.on(_held_out(session.data, seed))
    scores = {
        name: _scores(held, name, s, learning_rates, seed, bar, keep)
        for name, s in strategies.items()
    }
    mode = session.programs.task.mode
    common = max(
        learning_rates,
        key=lambda learning_rate: _common_score(
            [score(s[learning_rate], mode) for s in scores.values()]
        ),
    )
    each = {
        name: max(learning_rates, key=lambda r: score(s[r], mode))
        for name, s in scores.items()
    }
    chosen = each if tune == "each" else dict.fromkeys(scores, common)
    return {
        "tune": tune,
        "held_out": len(held.data.test),
        "score": "final",
        "scores": {n: {f"{r:g}": v for r, v in s.items()} for n, s in scores.items()},
        "chosen": chosen,
    }


def _kept_in(
    out: str | Path | None,
    every: str,
    resume: str,
    name: str,
    seed: int,
    group: str = "",
) -> dict[str, Any]:
    """Where a run is kept, as arguments of `Session.run`; nothing without `out`."""
    if out is None:
        return {}
    folder = Path(out) / group / _of_run(name, seed)
    return {"checkpoint": Checkpoint(folder, every=every), "resume": resume}


def _of_run(name: str, seed: int) -> str:
    """A run as the name of a file."""
    return f"{file_name(name, safe=' ,=()')}_{seed}"


def seconds_of(
    seconds: float | Mapping[str, float],
    strategies: Mapping[str, Strategy],
    learning_rates: Sequence[float],
) -> dict[str, Any]:
    """The seconds of each strategy's runs; each number is checked.

    Errors: a ValueError for other names, or beside learning rates to choose from.
    """
    if not isinstance(strategies, Mapping):
        return {}  # `Session.check_strategies` says what is wrong
    if not isinstance(seconds, Mapping):
        check_seconds(seconds)
        return dict.fromkeys(strategies, seconds)
    if set(seconds) != set(strategies):
        raise ValueError(
            f"seconds is for {', '.join(map(str, seconds)) or 'nothing'}, but the "
            f"strategies are {', '.join(map(str, strategies))}: give each its own, or "
            "one number for all"
        )
    if len(learning_rates):
        raise ValueError(
            "learning_rates are compared over the same seconds: give one number"
        )
    for time in seconds.values():
        check_seconds(time)
    return dict(seconds)


def _check_kept(
    sessions: Mapping[str, Session],
    strategies: Mapping[str, Strategy],
    learning_rates: Sequence[float],
    seeds: Sequence[int],
    keep: Keep,
) -> None:
    """Raise an OtherRun before any run begins, so that none is made in vain."""
    for seed, (name, strategy) in itertools.product(seeds, strategies.items()):
        rated = [_at(strategy, learning_rate) for learning_rate in learning_rates]
        for each in rated or [strategy]:
            kept = keep(_rated(name, each) if rated else name, seed)
            sessions[name].check_kept(name, each, seed, **kept)


def _families(
    strategies: Mapping[str, Strategy], sessions: Mapping[str, Session]
) -> list[list[str]]:
    """Neighbors that differ in their learning rates alone, as those of a sweep do."""
    found: list[tuple[Any, list[str]]] = []
    for name, strategy in strategies.items():
        own = sessions[name]
        same = [part for part in PARTS if part != "learning_rate"]
        parts = [getattr(strategy, part) for part in same]
        alike = key_of(tuple(parts)), own.config.instants
        if found and found[-1][0] == alike and not own.real:
            found[-1][1].append(name)
        else:
            found.append((alike, [name]))
    return [names for _, names in found]


def _rated(name: str, strategy: Strategy) -> str:
    """The name of a run whose learning rate is chosen, or tried."""
    return f"{name}, rate {strategy.learning_rate}"


def _common_score(scores: Sequence[float]) -> tuple[int, float]:
    """Return how many strategies did not diverge, and their average score."""
    survivors = [s for s in scores if s > -math.inf]
    return len(survivors), mean(survivors) if survivors else -math.inf


def _scores(
    held: Session,
    name: str,
    strategy: Strategy,
    learning_rates: Sequence[float],
    seed: int,
    bar: ProgressBar,
    keep: Keep,
) -> dict[float, float]:
    """The final metric at each learning rate."""
    # in its settings, too: a kept run is the same one beside other rates
    rated = [_at(strategy, rate) for rate in learning_rates]
    names = [_rated(name, each) for each in rated]
    runs = [
        ComparedRun(each, own, seed, keep(each, seed, TUNING))
        for each, own in zip(names, rated, strict=True)
    ]
    found = {}
    for histories in run_all(held, runs, bar):
        for history in histories:
            if history.interrupted:
                # while tuning there are no results to return yet
                raise KeyboardInterrupt(history.signal)
            final = history.final()
            bad = history.stopped or final != final
            found[history.strategy] = worst(history.mode) if bad else final
    return {rate: found[each] for rate, each in zip(learning_rates, names, strict=True)}


def _held_out(data: Dataset, seed: int) -> Dataset:
    rest, held = split_off(data.train, seed)
    return replace(data, train=rest, test=held)


def _with_learning_rates(
    strategies: Mapping[str, Strategy], learning_rates: Mapping[str, float]
) -> dict[str, Strategy]:
    return {name: _at(s, learning_rates[name]) for name, s in strategies.items()}


def _at(strategy: Strategy, learning_rate: float) -> Strategy:
    return strategy._replace(learning_rate=learning_rate)


def describe(data: Dataset) -> dict[str, Any]:
    """Return a summary of the data set, for results.json."""
    return {
        "name": data.name,
        "train_examples": len(data.train),
        "test_examples": len(data.test),
        "features": data.num_features,
        "classes": data.num_classes,
        "sparse": data.sparse,
        "multilabel": data.multilabel,
        "notes": [*data.notes, *_unseen(data)],
    }


def _unseen(data: Dataset) -> list[str]:
    """A note on classes or labels that only the test split has, if it is known."""
    seen = []
    for y in (data.train.y, data.test.y):
        if sp.issparse(y):
            y = y.indices[y.data > 0]
        if not data.num_classes or not isinstance(y, np.ndarray):
            return []
        seen.append(np.unique(y))
    new = np.setdiff1d(seen[1], seen[0])
    shown = ", ".join(map(str, new[:5])) + (", ..." if len(new) > 5 else "")
    kind = "label" if data.multilabel else "class"
    ids = f"{kind} ids that only the test split has"
    return [f"{len(new)} {ids}, and no model can learn: {shown}"] if len(new) else []
