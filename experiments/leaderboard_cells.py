"""One cell of the leaderboard: a strategy on a machine, a task and a partition.

First the rates are chosen on a tenth of the training split that is held out; then every
seed is run at them. Each is a call of `hj.compare`, which plays runs that differ in the
learning rate only in one compiled program.
"""

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hetjax as hj
from experiments import leaderboard_problems as problems
from experiments.leaderboard_rates import (
    GROW,
    OUTER,
    Factory,
    Pair,
    grown,
    outer_rates,
    outer_setting,
    pairs,
)
from hetjax.atomic_files import write_whole
from hetjax.data.held_out import held_out_rows
from hetjax.metric_mode import score, worst
from hetjax.report.record import plain
from hetjax.report.summary import summary_row

# between merges, at most: a run is of a few hundred steps of a worker, and defaults of
# 32 would leave a slow one hardly a merge
LOCAL_STEPS = 8


class Effort(NamedTuple):
    """What every cell gets."""

    seeds: int
    num_evals: int
    outer: tuple[float, ...] = OUTER
    share: float = 1.0  # of each task's batches
    inner: tuple[float, ...] = ()  # in place of each task's own; (): those
    grow: int = GROW  # times that the grid may grow where its best pair is at its edge


class Cell(NamedTuple):
    """A strategy on a machine, a task and a partition."""

    machine: str
    task: str
    partition: str
    strategy: str

    def path(self, folder: Path) -> Path:
        """The file of its results."""
        place = f"{self.machine}, {self.task}, {self.partition}"
        return folder / "cells" / place / f"{self.strategy}.json"


def plain_workers(make: Factory) -> dict[str, float]:
    """No momentum of the workers, where a factory's default is not 0.

    So all have SGD in the workers, but for EAMSGD, which is named after its momentum.
    """
    momentum = inspect.signature(make).parameters.get("momentum")
    return {"momentum": 0.0} if momentum and momentum.default is None else {}


def short_rounds(make: Factory, batch_size: int, workers: int) -> dict[str, Any]:
    """At most `LOCAL_STEPS` between merges, as settings of a factory with more.

    "measured:32" becomes "measured:8". A mega-batch has `LOCAL_STEPS` batches for each
    of the workers. A buffer has as many reports as there are workers.
    """
    parameters = inspect.signature(make).parameters
    if "mega_batch" in parameters:
        return {"mega_batch": LOCAL_STEPS * workers * batch_size}
    buffer = {"buffer_size": workers} if "buffer_size" in parameters else {}
    return buffer | _short_local_steps(parameters)


def _short_local_steps(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    known = parameters.get("local_steps")
    kind, _, number = str(known.default if known else None).rpartition(":")
    if not number.isdecimal() or int(number) <= LOCAL_STEPS:
        return {}
    return {"local_steps": f"{kind}:{LOCAL_STEPS}" if kind else LOCAL_STEPS}


def strategy_at(
    make: Factory,
    batch_size: int,
    pair: Pair,
    sampler: hj.sampling.Sampler | None = None,
    **settings: Any,
) -> hj.Strategy:
    """The strategy at these rates; with `sampler` in place of its own if given."""
    own: dict[str, Any] = {"batch_size": batch_size, "learning_rate": pair.inner}
    if pair.outer is not None:
        own[str(outer_setting(make))] = pair.outer
    made = make(**own, **settings)
    return made if sampler is None else made._replace(sampler=sampler)


def own_settings(cell: Cell) -> dict[str, Any]:
    """The settings of a cell's strategy that are not its defaults, without rates."""
    workers = len(hj.machine.preset(cell.machine).workers)
    make, size = hj.STRATEGIES[cell.strategy], problems.TASKS[cell.task].batch_size
    return plain_workers(make) | short_rounds(make, size, workers)


def asked(cell: Cell, effort: Effort, seconds: float) -> dict[str, Any]:
    """The settings that a cell's numbers depend on, in words of JSON."""
    make = hj.STRATEGIES[cell.strategy]
    inner = effort.inner or problems.TASKS[cell.task].rates
    outer = outer_rates(cell.strategy, effort.outer)
    tried = pairs(inner, outer, has_outer=outer_setting(make) is not None)
    return {
        **cell._asdict(),
        "batch_size": problems.TASKS[cell.task].batch_size,
        "seconds": seconds,
        "seeds": effort.seeds,
        "num_evals": effort.num_evals,
        "rates": [list(pair) for pair in tried],
        "grow": effort.grow,
        "settings": own_settings(cell),
    }


def read(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """A cell's results, or None if it is not done.

    Errors: a ValueError if the file is of other settings.
    """
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, value in wanted.items():
        if found["asked"].get(name) != value:
            raise ValueError(
                f"{path} has {name}={found['asked'].get(name)}, not {value}: pass "
                "another --out, or remove the file"
            )
    return found


def run(cell: Cell, effort: Effort, path: Path) -> dict[str, Any]:
    """Run a cell and write its file; raise a KeyboardInterrupt if a signal came."""
    seconds = problems.seconds(cell.machine, cell.task, effort.share)
    wanted = asked(cell, effort, seconds)
    scores, best = _tuned(cell, wanted, effort)
    comparison = _final(cell, best, seconds, effort)
    found = {
        "asked": wanted,
        "tried": [list(pair) for pair in scores],
        "scores": plain(list(scores.values())),
        "chosen": list(best),
        "metric": comparison.metric,
        "mode": comparison.mode,
        "constant": plain(comparison.constant),
        "hetjax": comparison.versions["hetjax"],
        "runs": [_record(history) for history in comparison.histories],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, allow_nan=False) + "\n"
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
    return found


def _tuned(
    cell: Cell, wanted: Mapping[str, Any], effort: Effort
) -> tuple[dict[Pair, float], Pair]:
    """The score of every pair that was tried, and the best of them."""
    scores: dict[Pair, float] = {}
    more = [Pair(*pair) for pair in wanted["rates"]]
    best = more[0]
    for _ in range(1 + effort.grow):
        found, mode = _scores(cell, more, wanted["seconds"], effort.num_evals)
        scores.update(zip(more, found, strict=True))
        best = max(scores, key=lambda pair: score(scores[pair], mode))
        more = grown(list(scores), best)
        if not more:
            break
    return scores, best


def _scores(
    cell: Cell, tried: Sequence[Pair], seconds: float, num_evals: int
) -> tuple[list[float], str]:
    """The final metric of each pair on the held-out tenth, of seed 0; and its mode.

    A run that diverged has the worst score.
    """
    task, data, classes = problems.problem(cell.task)
    rest, held = held_out_rows(len(data.train), 0)
    split = replace(data, train=data.train.take(rest), test=data.train.take(held))
    found = _compare(
        cell,
        task,
        split,
        _strategies(cell, tried, classes, rest),
        seconds,
        seeds=(0,),
        num_evals=num_evals,
    )
    ends = [
        worst(h.mode) if h.stopped or math.isnan(h.final()) else h.final()
        for h in found.histories
    ]
    return ends, found.mode


def _final(cell: Cell, pair: Pair, seconds: float, effort: Effort) -> hj.Comparison:
    """The runs of all seeds at the chosen rates."""
    task, data, classes = problems.problem(cell.task)
    (strategy,) = _strategies(cell, [pair], classes).values()
    return _compare(
        cell,
        task,
        data,
        {cell.strategy: strategy},
        seconds,
        seeds=range(effort.seeds),
        num_evals=effort.num_evals,
    )


def _strategies(
    cell: Cell,
    tried: Sequence[Pair],
    classes: Any,
    rows: np.ndarray | None = None,
) -> dict[str, hj.Strategy]:
    """The strategy at each pair of rates, on its own shards if they are unlike.

    Sequential SGD has all data: a shard of its only worker would hide the rest.
    """
    make, size = hj.STRATEGIES[cell.strategy], problems.TASKS[cell.task].batch_size
    unlike = cell.partition == "unlike" and cell.strategy != "sequential_sgd"
    sampler = problems.shards(classes, rows) if unlike else None
    return {
        f"{cell.strategy}, {pair}": strategy_at(
            make, size, pair, sampler, **own_settings(cell)
        )
        for pair in tried
    }


def _compare(
    cell: Cell,
    task: hj.Task,
    data: hj.data.Dataset,
    strategies: dict[str, hj.Strategy],
    seconds: float,
    **settings: Any,
) -> hj.Comparison:
    """`hj.compare` to its end, or a KeyboardInterrupt."""
    found = hj.compare(
        task,
        data,
        problems.machine(cell.machine, seconds),
        strategies,
        seconds=seconds,
        progress=False,
        **settings,
    )
    if found.interrupted:
        raise KeyboardInterrupt(found.signal)
    return found


def _record(history: hj.History) -> dict[str, Any]:
    """What the page needs of a run."""
    row = summary_row("", [history], math.nan)
    kept = ("waiting_share", "mb_per_worker", "updates", "merges", "examples")
    points = [[p["seconds"], p[history.metric]] for p in history.evals]
    return plain(
        {
            "seed": history.seed,
            "stopped": history.stopped,
            "played": history.played,
            "evals": points,
            **{name: row[name] for name in kept},
        }
    )
