"""Checked calls of a policy's init and react, since the policy may be custom."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from hetjax.machine.types import Event, LocalRound, MergeAction, WorkerInfo
from hetjax.schedule.types import Actions, Policy
from hetjax.summaries import maker

MAX_STEPS = 2**22  # of a round; each step has an array of rows
MAX_ROWS = 2**27  # of a round: 1 GiB of row numbers


class WrongActions(ValueError):
    """A policy returned actions that the loop cannot carry out."""


def begin(
    policy: Policy, workers: tuple[WorkerInfo, ...], num_examples: int
) -> tuple[Any, Actions]:
    """Call `policy.init`; raise WrongActions unless it returns a state and Actions."""
    return _checked(policy, "init", policy.init(workers, num_examples))


def react(policy: Policy, state: Any, event: Event) -> tuple[Any, Actions]:
    """Call `policy.react`; raise WrongActions unless it returns a state and Actions."""
    return _checked(policy, "react", policy.react(state, event))


def _checked(policy: Policy, function: str, result: Any) -> tuple[Any, Actions]:
    pair = isinstance(result, (tuple, list)) and len(result) == 2
    if not pair or not isinstance(result[1], Actions):
        found = f"{function} returned {_shown(result)}"
        raise _wrong(policy, f"{found}: return a pair (state, Actions(...))")
    state, actions = result
    for name in ("dispatch", "merges", "start", "cancel"):
        values = getattr(actions, name)
        if isinstance(values, tuple):
            continue
        if not isinstance(values, Iterable):
            found = f"{function} returned Actions({name}={values!r})"
            raise _wrong(policy, f"{found}: use a tuple")
        # a generator is read only once
        actions = actions._replace(**{name: tuple(values)})
    for given in actions.dispatch:
        right = isinstance(given, (tuple, list)) and len(given) == 2
        if not right or not _is_round(given[1]):
            raise _wrong(
                policy,
                f"{function} dispatches {_shown(given)}: use pairs (worker, "
                "LocalRound(local_steps, batch_size)) with a whole number of steps "
                "and a finite batch size above 0",
            )
        check_rows(given[1])
    for given in actions.merges:
        if not isinstance(given, MergeAction):
            found = f"{function} merges {_shown(given)}"
            raise _wrong(policy, f"{found}: use MergeAction(members)")
    return state, actions


def check_rows(local_round: LocalRound) -> None:
    """Raise a ValueError for a round whose rows cannot be drawn at once."""
    if local_round.local_steps > MAX_STEPS or local_round.examples > MAX_ROWS:
        raise ValueError(
            f"a worker's round has {local_round.local_steps:,} local steps of "
            f"{local_round.size} examples: the rows of all its steps are drawn when it "
            f"begins, so it may have at most {MAX_STEPS:,} steps and {MAX_ROWS:,} "
            "rows; use fewer local_steps"
        )


def _is_round(value: Any) -> bool:
    if not isinstance(value, LocalRound):
        return False
    given: tuple[Any, Any] = value.local_steps, value.batch_size
    if type(given[0]) is int and type(given[1]) is float:  # the usual case
        return given[0] >= 0 and 0 < given[1] < math.inf
    # scalars of NumPy and JAX are accepted as well
    steps, size = (x.item() if getattr(x, "ndim", None) == 0 else x for x in given)
    whole = isinstance(steps, Integral) and steps >= 0  # pyright: ignore
    return whole and isinstance(size, Real) and 0 < size < math.inf  # pyright: ignore


def _wrong(policy: Policy, what: str) -> WrongActions:
    return WrongActions(f"the policy {maker(policy.react)}: {what}")


def _shown(value: Any) -> str:
    """The value where its repr is short, else its type."""
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"
