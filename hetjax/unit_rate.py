"""A check that optimizers are built with a learning rate of 1.

hetjax multiplies an optimizer's updates by the learning rate of the strategy, which may
change at every step. An optimizer with a learning rate of its own, such as
`optax.adam(1e-3)`, would silently train at a thousandth of the intended rate.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

COUNTS = tuple(10**k for k in range(7))  # steps at which a schedule is evaluated
# The first update of rmsprop(1.0) on ones is 3 to 32, that of MagmaDNN's ema 0.01.
FAR = 50.0


def check_unit_rate(optimizer: optax.GradientTransformation, where: str) -> None:
    """Raise a ValueError if an optimizer was built with a learning rate other than 1.

    `where` names the argument. The learning rate is read from the parts of the
    optimizer; a schedule counts with its largest value. The updates alone do not tell
    it: the first update of `lars(1.0)` is as small as that of `adam(1e-3)`, and
    `sgd(.1, .9)` is the same function as an average of gradients with decay .9. Only if
    no part has a learning rate, as in a custom transformation, the size of the first
    update on ones decides: it must be within a factor of 50 of 1. Nothing is checked
    where that depends on a traced value, as under `vmap` over settings.
    """
    try:
        rates = list(_rates(optimizer.update, set()))
        rate = float(np.prod(np.abs(rates))) if rates else _first_update(optimizer)
    except jax.errors.ConcretizationTypeError:
        return
    limit = 1.001 if rates else FAR
    if not 1 / limit <= rate <= limit:
        built = f"was built with learning rate {rate:.3g}"
        found = built if rates else f"has first updates of size {rate:.3g}"
        raise ValueError(
            f"{where}: the optimizer {found}; build it with learning rate 1.0 and give "
            "the learning rate to the strategy (learning_rate=...), which multiplies "
            "the updates by it"
        )


def _rates(found: Any, seen: set[int]) -> Iterator[float]:
    """Yield the learning rates in a function and in everything that it closes over."""
    if id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, (tuple, list)):
        for part in found:
            yield from _rates(part, seen)
    elif isinstance(found, dict):
        yield from _rates(list(found.values()), seen)
    elif isinstance(found, partial):
        yield from _rates((found.func, found.args, found.keywords), seen)
    elif callable(found):
        maker = getattr(found, "__self__", None)  # of a method, such as MultiSteps'
        if type(maker).__module__.startswith("optax"):
            yield from _rates(vars(maker), seen)
        yield from _rates_of_closure(found, seen)


def _rates_of_closure(function: Callable, seen: set[int]) -> Iterator[float]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    maker = function.__qualname__.split(".")[0]
    for name, cell in cells:
        value = cell.cell_contents
        if name in ("step_size", "step_size_fn", "learning_rate"):
            # of scale and scale_by_schedule, and of optimizers in optax.contrib
            yield _largest(value)
        elif maker not in ("scale", "scale_by_schedule"):
            yield from _rates(value, seen)


def _largest(rate: Any) -> float:
    """The absolute learning rate, or the largest of a schedule over many counts."""
    if not callable(rate):
        return float(abs(rate))
    schedule = cast(optax.Schedule, rate)
    return max(float(jnp.abs(jnp.asarray(schedule(k)))) for k in (0, *COUNTS))


def _first_update(optimizer: optax.GradientTransformation) -> float:
    """The largest entry of the first update, for gradients and parameters of ones."""
    ones = {"w": jnp.ones(2)}
    updates, _ = optimizer.update(ones, optimizer.init(ones), ones)
    return max(float(jnp.max(jnp.abs(u))) for u in jax.tree.leaves(updates))
