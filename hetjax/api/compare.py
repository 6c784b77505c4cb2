"""Comparisons: several strategies and seeds on one task, one machine and one budget."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from hetjax.api.learning_rate_choice import (
    CheckpointingOf,
    at_rate,
    check_tunable,
    name_at_rate,
    tune_rates,
)
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.runs_at_once import ComparedRun, run_all
from hetjax.api.session import Session
from hetjax.api.value_checks import NumEvals, Resume, Seeds, check_folder, seeds_of
from hetjax.arguments import Count, Positive, Seed, as_kind, checked
from hetjax.checkpoint.settings import EVERY, Checkpoint
from hetjax.checkpointable import file_name
from hetjax.data.dataset import Dataset
from hetjax.data.held_out import num_held_out
from hetjax.engine.job import Compiled, DataOn
from hetjax.engine.placement import Device
from hetjax.engine.programs.sharing import key_of
from hetjax.engine.records.history import History
from hetjax.machine import Machine
from hetjax.processes.exchange import is_first
from hetjax.report.comparison import Comparison
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.openers import CustomMachine, check_placement
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.strategies.types import PARTS, Strategy
from hetjax.tasks.constant_prediction import constant_metric
from hetjax.tasks.types import Task

Tune = Literal["common", "each"]


@checked
def compare(
    task: Task,
    data: Dataset,
    machine: Machine | LocalMachine | ClusterMachine | CustomMachine,
    strategies: Mapping[str, Strategy],
    *,
    seconds: Positive | Mapping[str, float],
    seeds: Seeds = 1,
    num_evals: NumEvals = 50,
    eval_examples: Count | None = None,
    epochs: Positive | None = None,
    target: float | None = None,
    learning_rates: Sequence[Positive] = (),
    tune: Tune = "common",
    traces: str | Path | None = None,
    devices: Sequence[Device | str] | None = None,
    compiled: Compiled = "auto",
    data_on: DataOn = "auto",
    schedule_seed: Seed | None = None,
    out: str | Path | None = None,
    every: str = EVERY,
    resume: Resume = "auto",
    progress: bool = True,
    on_history: Callable[[History], object] | None = None,
) -> Comparison:
    """Run every strategy with every seed for the same number of seconds.

    The seconds are virtual, or wall-clock time on a `local_machine`. They may also be a
    dictionary with the seconds of each strategy, such as those that `plan` finds for a
    number of epochs; each strategy is then evaluated at its own times. Real runs differ
    from one another; each is recorded in the folder `traces`, if it is passed.
    `devices`, `compiled` and `data_on` are those of `train`.

    Runs with the same seed start from the same parameters, draw from the same shuffled
    order, and are evaluated at the same times (on `eval_examples` of the test split, if
    passed, and on all of it at the end, as in `train`). `seeds` is a number of seeds
    (0, 1, ...) or a sequence of seeds. With `learning_rates`, the learning rate (at the
    largest batch size; other sizes follow by linear scaling) is chosen first, on a
    tenth of the training split that is held out for this (or on `eval_examples` of it,
    if passed). tune="common" chooses the one learning rate whose metric is best on
    average over all strategies (the Adaptive SGD paper's protocol), "each" the best
    learning rate of each strategy. The metric is the one at the end (`History.final`).

    With `out`, a folder, every run, also one that chooses learning rates, is
    checkpointed in its own folder there. The same call again runs only what is missing;
    `every` and `resume` are those of `train`. Strategies and seeds may be added; a
    setting that has changed raises an OtherRun (a ValueError) that names it, before any
    run begins.

    A run that turns NaN is stopped and reported, its history is returned, and the other
    runs continue. `epochs` ends a run at the first evaluation after that many passes
    over the training data. Ctrl-C stops the comparison and returns the histories so far
    (KeyboardInterrupt if there are none). `on_history` is called with the history of
    each run when it ends. An exception raised by it, or by a part of a strategy, has
    the histories so far as its attribute `histories`.

    Errors: a ValueError that names the argument, before anything is compiled, for a
    request that cannot be met.
    """
    seeds = seeds_of(seeds)
    seconds = seconds_of(seconds, strategies, learning_rates)
    check_folder("traces", traces)
    check_folder("out", out)
    _ = Checkpoint(out or ".", every=every)  # which checks `every`
    if out is None and (resume == "must" or every != EVERY):
        given = f"every={every!r} and resume={resume!r}"
        raise ValueError(f"{given}: pass out, the folder of the runs, too")
    checkpointing_of = partial(_checkpointing, out, every, resume)
    config = RunConfig(
        seconds=max(seconds.values(), default=1.0),  # none: an error says so below
        num_evals=num_evals,
        eval_examples=eval_examples,
        epochs=epochs,
        devices=devices,
        compiled=compiled,
        data_on=data_on,
        schedule_seed=schedule_seed,
    )
    session = Session(task, data, machine, config)
    _check_fits(session, strategies, learning_rates, recorded=traces is not None)
    sessions = {name: session.with_seconds(s) for name, s in seconds.items()}
    _check_resumable(sessions, strategies, learning_rates, seeds, checkpointing_of)
    runs_each = len(seeds) + len(learning_rates)
    bar = ProgressBar(
        runs_each * sum(seconds.values()),
        runs_each * len(strategies),
        shown=progress,
        real=session.real,
    )
    traces = traces if session.real and is_first() else None
    if traces:
        Path(traces).mkdir(parents=True, exist_ok=True)
    histories: list[History] = []
    tuning, signal = None, ""
    try:
        if len(learning_rates):
            tuning = tune_rates(
                session,
                strategies,
                learning_rates,
                tune,
                seeds[0],
                bar,
                checkpointing_of,
            )
            rates = tuning["chosen"]
            strategies = {n: at_rate(s, rates[n]) for n, s in strategies.items()}
            # adding a strategy may change the rate that is best for all
            checkpointing_of = partial(_of_rated, checkpointing_of, strategies)
        for history in _run_groups(
            sessions, strategies, seeds, bar, checkpointing_of, traces
        ):
            histories.append(history)
            if on_history:
                on_history(history)
        if histories[-1].interrupted:
            signal = histories[-1].signal or "SIGINT"
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


def _run_groups(
    sessions: Mapping[str, Session],
    strategies: Mapping[str, Strategy],
    seeds: Sequence[int],
    bar: ProgressBar,
    checkpointing_of: CheckpointingOf,
    traces: str | Path | None,
) -> Iterator[History]:
    """Run all strategies and seeds; yield the histories until a run is interrupted.

    Runs go seed by seed, so that after Ctrl-C every strategy has some runs; seeds that
    share a schedule run together.
    """
    families = _families(strategies, sessions)
    shared = sessions[families[0][0]].config.schedule_seed is not None
    groups = [list(seeds)] if shared else [[seed] for seed in seeds]
    for group, names in itertools.product(groups, families):
        trace = None
        if traces:  # of one run at a time, since real ones are not played together
            trace = Path(traces) / f"{_file_stem(names[0], group[0])}.jsonl"
        runs = [
            ComparedRun(name, strategies[name], seed, checkpointing_of(name, seed))
            for name in names
            for seed in group
        ]
        for found in run_all(sessions[names[0]], runs, bar, trace=trace):
            yield from found
            if found[-1].interrupted:
                return


def _check_fits(
    session: Session,
    strategies: Mapping[str, Strategy],
    learning_rates: Sequence[float],
    *,
    recorded: bool,
) -> None:
    """Raise a ValueError for strategies that do not fit the task, data and machine."""
    num_examples = len(session.data.train)
    if len(learning_rates):
        num_examples -= num_held_out(num_examples)
    session.check_strategies(strategies, num_examples)
    check_placement(session.machine, strategies, recorded=recorded)
    check_tunable(strategies, learning_rates)


def _checkpointing(
    out: str | Path | None,
    every: str,
    resume: str,
    name: str,
    seed: int,
    group: str = "",
) -> dict[str, Any]:
    """Return the checkpoint arguments of `Session.run`; none without `out`."""
    if out is None:
        return {}
    folder = Path(out) / group / _file_stem(name, seed)
    return {"checkpoint": Checkpoint(folder, every=every), "resume": resume}


def _of_rated(
    checkpointing_of: CheckpointingOf,
    strategies: Mapping[str, Strategy],
    name: str,
    seed: int,
) -> dict[str, Any]:
    """As `checkpointing_of`, for a run whose learning rate was chosen."""
    return checkpointing_of(name_at_rate(name, strategies[name]), seed)


def _file_stem(name: str, seed: int) -> str:
    """Return the name of a run's file or folder."""
    return f"{file_name(name, safe=' ,=()')}_{seed}"


def seconds_of(
    seconds: float | Mapping[str, float],
    strategies: Mapping[str, Strategy],
    learning_rates: Sequence[float],
) -> dict[str, Any]:
    """Return the seconds of each strategy's runs; check each number.

    Errors: a ValueError if a dictionary has other names than the strategies, or if
    learning rates are to be chosen.
    """
    if not isinstance(strategies, Mapping):
        return {}  # `Session.check_strategies` says what is wrong
    if not isinstance(seconds, Mapping):
        return dict.fromkeys(strategies, seconds)
    if set(seconds) != set(strategies):
        raise ValueError(
            f"seconds is for {', '.join(map(str, seconds)) or 'nothing'}, but the "
            f"strategies are {', '.join(map(str, strategies))}: pass a number for each "
            "of them, or one number for all"
        )
    if len(learning_rates):
        raise ValueError(
            "learning_rates are compared over the same seconds: pass one number"
        )
    return {name: as_kind("seconds", s, Positive) for name, s in seconds.items()}


def _check_resumable(
    sessions: Mapping[str, Session],
    strategies: Mapping[str, Strategy],
    learning_rates: Sequence[float],
    seeds: Sequence[int],
    checkpointing_of: CheckpointingOf,
) -> None:
    """Raise an OtherRun before any run begins, rather than after some runs."""
    for seed, (name, strategy) in itertools.product(seeds, strategies.items()):
        rated = [at_rate(strategy, learning_rate) for learning_rate in learning_rates]
        for each in rated or [strategy]:
            run = name_at_rate(name, each) if rated else name
            checkpointing = checkpointing_of(run, seed)
            sessions[name].check_resumable(name, each, seed, **checkpointing)


def _families(
    strategies: Mapping[str, Strategy], sessions: Mapping[str, Session]
) -> list[list[str]]:
    """Group neighbors that differ only in their learning rates, as in a sweep."""
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
    """Return a note on classes that only the test split has, if they are known."""
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
