"""Checks of single arguments; each raises a ValueError that names the argument."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetjax.data.dataset_checks import is_real, is_whole
from hetjax.schedule.learning_rates import START, LearningRate, check_learning_rate

MOST_EVALS = 1_000_000
MOST_SEEDS = 10_000


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise a ValueError unless `value` is one of the choices."""
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices)
        raise ValueError(f"{name}={value!r}: choose one of {known}")


def check_seconds(seconds: Any) -> None:
    """Raise a ValueError unless `seconds` is a finite number above 0."""
    if not (is_real(seconds) and seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"seconds={seconds!r}: pass a finite number above 0")


def check_num_evals(num_evals: Any) -> None:
    """Raise a ValueError unless `num_evals` is a whole number from 1 to MOST_EVALS."""
    if not (is_whole(num_evals) and num_evals >= 1):
        raise ValueError(f"num_evals={num_evals!r}: pass a whole number, at least 1")
    if num_evals > MOST_EVALS:
        raise ValueError(
            f"num_evals={num_evals}: pass at most {MOST_EVALS:,}: each evaluation uses "
            "the whole test split, and its metrics stay in the history"
        )


def check_eval_examples(eval_examples: Any) -> None:
    """Raise a ValueError unless it is None or a whole number of at least 1."""
    if eval_examples is not None and not (
        is_whole(eval_examples) and eval_examples >= 1
    ):
        raise ValueError(
            f"eval_examples={eval_examples!r}: pass a whole number of at least 1, or "
            "None for the whole test split"
        )


def check_target(target: Any) -> None:
    """Raise a ValueError unless `target` is None or a finite number."""
    if target is not None and not (is_real(target) and math.isfinite(target)):
        raise ValueError(f"target={target!r}: pass a finite number, or None")


def check_epochs(epochs: Any) -> None:
    """Raise a ValueError unless `epochs` is None or a finite number above 0."""
    if epochs is None:
        return
    if not (is_real(epochs) and epochs > 0 and math.isfinite(epochs)):
        raise ValueError(f"epochs={epochs!r}: pass a finite number above 0, or None")


def check_callback(name: str, callback: Any, *, several: bool = False) -> None:
    """Raise a ValueError unless it is None, callable, or (`several`) a list."""
    listed = several and isinstance(callback, list | tuple)
    for one in callback if listed else (callback,):
        if one is not None and not callable(one):
            what = f"{name} has {shown(one)}" if listed else f"{name} is {shown(one)}"
            raise ValueError(
                f"{what}: pass a function of one argument{', or several' * several}"
            )


def check_path(name: str, path: Any) -> None:
    """Raise a ValueError unless `path` is None or a path."""
    if path is not None and not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name} is {shown(path)}: pass a path, or None")


def check_folder(name: str, path: Any) -> None:
    """Raise a ValueError unless `path` is None, a folder, or does not exist yet."""
    check_path(name, path)
    if path is not None and Path(path).exists() and not Path(path).is_dir():
        raise ValueError(f"{name}={str(path)!r}: this is a file; pass a folder")


def check_seed(seed: Any, name: str = "seed") -> None:
    """Raise a ValueError for a seed that JAX would refuse or change."""
    if not (is_whole(seed) and 0 <= int(seed) < 2**32):
        raise ValueError(f"{name}={seed!r}: pass a whole number from 0 to 2**32 - 1")


def seeds_of(seeds: Any) -> tuple[int, ...]:
    """Return the seeds: 0, 1, ... for a number of seeds, or the given sequence."""
    if is_whole(seeds):
        _check_number_of_seeds(int(seeds))
        return tuple(range(int(seeds)))
    if not isinstance(seeds, Iterable) or isinstance(seeds, str | bytes | Mapping):
        raise ValueError(
            f"seeds={seeds!r}: pass a whole number of seeds, or a sequence of them"
        )
    if isinstance(seeds, Sequence):
        _check_number_of_seeds(len(seeds))
    found = tuple(seeds)
    _check_number_of_seeds(len(found))
    for seed in found:
        check_seed(seed)
    if len(set(found)) < len(found):
        raise ValueError(f"seeds={found}: pass every seed once")
    return found


def _check_number_of_seeds(number: int) -> None:
    if number < 1:
        raise ValueError("there are no seeds: pass at least one")
    if number > MOST_SEEDS:
        raise ValueError(
            f"seeds: {number} are too many, pass at most {MOST_SEEDS:,}: each is a run "
            "of every strategy, and all histories stay in memory"
        )


def check_rate(learning_rate: Any) -> None:
    """Raise a ValueError unless this is a learning rate or a learning-rate schedule.

    A schedule is called once, for its value at the start. It must be a finite number,
    at least 0 (a warm-up may begin with 0).
    """
    scheduled = isinstance(learning_rate, LearningRate) or callable(learning_rate)
    if not scheduled and not is_real(learning_rate):
        raise ValueError(
            f"learning_rate is {shown(learning_rate)}: pass a number above 0, or a "
            "function of the examples"
        )
    check_learning_rate(learning_rate)
    if not scheduled:
        return
    own = isinstance(learning_rate, LearningRate)
    schedule = learning_rate.schedule if own else learning_rate
    unit = learning_rate.over if own else "examples"
    first = _value_at_start(schedule, unit)
    if not (math.isfinite(first) and first >= 0):
        raise ValueError(
            f"learning_rate: the schedule begins with {first}; it must return a finite "
            "number, at least 0"
        )


def _value_at_start(schedule: Any, unit: str) -> float:
    """Return the schedule's first value; raise a ValueError if it is not a number."""
    start = getattr(START, unit)
    try:
        value = schedule(start)
    except Exception as error:
        raise ValueError(
            f"learning_rate: the schedule fails at its start, for {unit}={start} "
            f"({type(error).__name__}: {error})"
        ) from error
    if np.ndim(value):
        found = f"an array {list(np.shape(value))}"
    else:
        try:
            return float(value)
        except (TypeError, ValueError):
            found = shown(value)
    raise ValueError(
        f"learning_rate: the schedule begins with {found}; it must return one number"
    )


def check_learning_rates(learning_rates: Any) -> None:
    """Raise a ValueError unless this is a sequence of finite numbers above 0."""
    if not isinstance(learning_rates, Sequence | np.ndarray) or isinstance(
        learning_rates, str
    ):
        raise ValueError(
            f"learning_rates is {shown(learning_rates)}: pass a sequence of numbers"
        )
    for rate in learning_rates:
        if not (is_real(rate) and rate > 0 and math.isfinite(rate)):
            raise ValueError(
                f"learning_rates has {rate!r}: pass finite numbers above 0"
            )


def shown(value: Any) -> str:
    """Describe a value for a message: its type, and its repr if that is short."""
    text = repr(value)
    if value is None or isinstance(value, bool):
        return text
    kind = type(value).__name__
    short = len(text) <= 40 and "\n" not in text
    return f"a {kind}, {text}" if short else f"a {kind}"
