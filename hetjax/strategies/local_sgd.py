"""Local SGD on heterogeneous devices: balanced, unbalanced, biased."""

from collections.abc import Callable, Sequence
from typing import Any

import optax

from hetjax import local, merge, sampling, schedule
from hetjax.merge import Merge
from hetjax.merge.merge_checks import check_fraction, check_positive
from hetjax.schedule import LearningRateLike, WorkerInfo
from hetjax.strategies.types import Strategy, factory, settings
from hetjax.strategies.worker_optimizers import sgd_or
from hetjax.traced_settings import is_given

SAMPLINGS = ("uniform", "unified", "separated")
Steps = int | Sequence[int] | str
Workers = tuple[WorkerInfo, ...]


@factory
def local_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    momentum: float | None = None,
    reset_momentum: bool = False,
    weight_decay: float = 0.0,
    aggregation: str = "average",
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Local SGD: worker i does tau_i local steps, then all continue from their average.

        x = sum_i p_i x^i

    `local_steps` is tau: one number for all workers (balanced), one for each, or
    "measured:32", which is 32 for the fastest worker and proportionally fewer for
    slower workers, but at least 1 (unbalanced). `aggregation` is "average" (p_i = 1/m,
    eq. 3), "steps" (p_i = tau_i / sum tau_k, eq. 4), "fed_nova", "fed_acc" or
    "fed_adp". `momentum` (default 0.9) is local to each worker and continues from round
    to round, except with `reset_momentum` (for the two averages) and with FedNova,
    which always resets it. `optimizer` is an optax optimizer for every worker in place
    of SGD; its state stays with the worker, and its learning rate is built in, or is
    `learning_rate` (`hetjax.strategies.worker_optimizers`). Source: Biased Local SGD,
    Section 3; docs/algorithms E.1.
    """
    momentum = _momentum(momentum, optimizer)
    given = settings(locals())
    merging = _aggregation(aggregation, momentum, reset_momentum, optimizer)
    return _rounds_of(
        merging,
        batch_size,
        learning_rate,
        local_steps,
        momentum,
        weight_decay,
        optimizer,
    )._replace(settings=given, name="local_sgd")


@factory
def biased_local_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = "measured:32",
    pool_factor: float | None = None,
    sampler: str = "separated",
    aggregation: str = "steps",
    pool_formula: str = "steps",
    momentum: float | None = None,
    reset_momentum: bool = False,
    weight_decay: float = 0.0,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Local SGD whose slow workers do fewer steps, on examples with high losses.

        x = sum_i tau_i / sum_k tau_k x^i                          (aggregation="steps")

    Once per pass the slow workers, those with fewer steps than the fastest, take the
    examples whose last seen losses are highest from a random pool that is `pool_factor`
    (d in the paper, default 2) times as large (`sampling.biased`; `sampler` is
    "uniform", "unified" or "separated"). To use only one of the two biases, pass
    `sampler="uniform"` or `aggregation="average"`. The other settings are those of
    `local_sgd`. Source: Biased Local SGD, Algorithm 1; docs/algorithms E.
    """
    momentum = _momentum(momentum, optimizer)
    given = settings(locals())
    if sampler not in SAMPLINGS:
        raise ValueError(f"sampler={sampler!r}: choose one of {SAMPLINGS}")
    if sampler == "uniform":
        chosen = sampling.uniform()
    else:
        chosen = sampling.biased(
            local_steps=_steps_of(local_steps, batch_size),
            pool_factor=pool_factor,
            unified=sampler == "unified",
            pool_formula=pool_formula,
        )
    return local_sgd(
        batch_size=batch_size,
        learning_rate=learning_rate,
        local_steps=local_steps,
        momentum=momentum,
        reset_momentum=reset_momentum,
        weight_decay=weight_decay,
        aggregation=aggregation,
        optimizer=optimizer,
    )._replace(sampler=chosen, settings=given, name="biased_local_sgd")


@factory
def fed_nova(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    local_steps: Steps = "measured:32",
    momentum: float = 0.0,
    proximal: float = 0.0,
    server_momentum: float = 0.0,
) -> Strategy:
    """Local SGD with different numbers of steps, averaged per step: FedNova.

    `momentum` is local to each worker; `proximal` (mu), which excludes it, is the
    weight of a proximal term that pulls a worker back to the round's start;
    `server_momentum` is the server's momentum. Source: `merge.fed_nova`.
    """
    given = settings(locals())
    check_fraction(server_momentum=server_momentum)
    merging = merge.fed_nova(
        momentum=momentum, proximal=proximal, server_momentum=server_momentum
    )
    strategy = _rounds_of(merging, batch_size, learning_rate, local_steps, momentum)
    if is_given(proximal):
        strategy = strategy._replace(local=local.proximal(proximal=proximal))
    return strategy._replace(settings=given, name="fed_nova")


@factory
def fed_acc(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = "measured:32",
    momentum: float = 0.0,
    power: float = 1.0,
    weight_by_share: bool = False,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Local SGD that weights models by their accuracy on held-out data: FedAcc.

    A tenth of the training split, at most 1,000 examples, is held out for that.
    `optimizer` is an optax optimizer for every worker in place of SGD; its learning
    rate is built in, or is `learning_rate` (`hetjax.strategies.worker_optimizers`).
    Source: `merge.fed_acc`.
    """
    given = settings(locals())
    return _rounds_of(
        merge.fed_acc(power=power, weight_by_share=weight_by_share),
        batch_size,
        learning_rate,
        local_steps,
        momentum,
        optimizer=optimizer,
    )._replace(settings=given, name="fed_acc")


@factory
def fed_adp(
    *,
    batch_size: int,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = "measured:32",
    momentum: float = 0.0,
    alpha: float = 5.0,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Local SGD that weights models by the direction in which they moved: FedAdp.

    `optimizer` is an optax optimizer for every worker in place of SGD; its learning
    rate is built in, or is `learning_rate` (`hetjax.strategies.worker_optimizers`).
    Source: `merge.fed_adp`.
    """
    given = settings(locals())
    return _rounds_of(
        merge.fed_adp(alpha=alpha),
        batch_size,
        learning_rate,
        local_steps,
        momentum,
        optimizer=optimizer,
    )._replace(settings=given, name="fed_adp")


def _momentum(
    momentum: float | None, optimizer: optax.GradientTransformation | None
) -> float:
    """The momentum of SGD, by default 0.9; 0 with an optimizer."""
    if momentum is None:
        return 0.9 if optimizer is None else 0.0
    return momentum


def _aggregation(
    name: str,
    momentum: float,
    reset: bool,
    optimizer: optax.GradientTransformation | None,
) -> Merge:
    """The merge of that name, for workers with this momentum."""
    merges: dict[str, Callable[[], Merge]] = {
        "average": lambda: merge.average(reset=reset),
        "steps": lambda: merge.average(weights="local_steps", reset=reset),
        "fed_nova": lambda: merge.fed_nova(momentum=momentum),
        "fed_acc": merge.fed_acc,
        "fed_adp": merge.fed_adp,
    }
    if name not in merges:
        raise ValueError(f"aggregation={name!r}: choose one of {tuple(merges)}")
    if reset and name in ("fed_acc", "fed_adp"):
        raise ValueError(
            f"reset_momentum=True: {name} keeps its workers' momentum; choose another "
            "aggregation"
        )
    if optimizer is not None and (reset or name == "fed_nova"):
        what = "reset_momentum=True" if reset else "aggregation='fed_nova'"
        raise ValueError(
            f"{what} concerns the momentum of SGD: leave it out with an optimizer"
        )
    return merges[name]()


def _rounds_of(
    merging: Merge,
    batch_size: int,
    learning_rate: LearningRateLike | None,
    local_steps: Steps,
    momentum: float,
    weight_decay: float = 0.0,
    optimizer: optax.GradientTransformation | None = None,
) -> Strategy:
    check_positive(batch_size=batch_size)
    check_fraction(momentum=momentum)
    rule, rate = sgd_or(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return Strategy(
        schedule.rounds(
            local_steps=_steps_of(local_steps, batch_size), batch_size=batch_size
        ),
        rule,
        merging,
        batch_size,
        rate,
    )


def _steps_of(local_steps: Steps, batch_size: int) -> Callable[[Workers], Any]:
    """tau of every worker: as passed, or from the workers' expected seconds."""
    if not isinstance(local_steps, str):
        check_positive(local_steps=local_steps)  # pyright: ignore
        if local_steps == ():
            raise ValueError(
                "local_steps=(): pass a number, one for each worker, or 'measured:32'"
            )
        return lambda workers: local_steps
    word, _, number = local_steps.partition(":")
    if word != "measured" or not (number.isdigit() and int(number) > 0):
        raise ValueError(
            f"local_steps={local_steps!r}: pass a number, one for each worker, or "
            "'measured:32'"
        )
    return schedule.equal_time(int(number), batch_size)
