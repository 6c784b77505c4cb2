"""The learning rates of a comparison, chosen on held-out training examples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from hetjax.api.progress import ProgressBar
from hetjax.api.runs_at_once import ComparedRun, run_all
from hetjax.api.session import Session
from hetjax.data.dataset import Dataset
from hetjax.data.held_out import split_off
from hetjax.metric_mode import score, worst
from hetjax.strategies.types import Strategy

TUNING = "tuning"  # the folder in `out` of the runs that choose learning rates
CheckpointingOf = Callable[..., dict[str, Any]]
"""checkpointing_of(name, seed, group="") -> the checkpoint arguments of `Session.run`
for a run; runs of a group share a folder."""


def check_tunable(
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
    checkpointing_of: CheckpointingOf = lambda *run: {},
) -> dict[str, Any]:
    """Choose learning rates on a held-out tenth of the training split.

    Returns {"tune", "held_out", "score": "final", "scores": {strategy: {learning rate:
    final metric}}, "chosen": {strategy: learning rate}}, where "held_out" is the number
    of examples of an evaluation (with `eval_examples` not all of them). A run that
    diverged has the worst score, infinite. The common learning rate is, among those
    with which most strategies do not diverge, the one that is best on average. Ties go
    to the first in `learning_rates`.
    """
    held = session.with_data(_held_out(session.data, seed))
    scores = {
        name: _scores(held, name, s, learning_rates, seed, bar, checkpointing_of)
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


def name_at_rate(name: str, strategy: Strategy) -> str:
    """Return the name of a run whose learning rate is chosen, or tried."""
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
    checkpointing_of: CheckpointingOf,
) -> dict[float, float]:
    """Return the final metric at each learning rate."""
    # a setting of the strategy: the run is resumed whichever other rates are tried
    rated = [at_rate(strategy, rate) for rate in learning_rates]
    names = [name_at_rate(name, each) for each in rated]
    runs = [
        ComparedRun(each, own, seed, checkpointing_of(each, seed, TUNING))
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


def at_rate(strategy: Strategy, learning_rate: float) -> Strategy:
    """Return the strategy with this learning rate."""
    return strategy._replace(learning_rate=learning_rate)
