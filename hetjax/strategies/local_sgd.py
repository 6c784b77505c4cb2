"""Local SGD on heterogeneous devices: balanced, unbalanced, biased."""

from typing import Literal

from hetjax import local, merge, sampling
from hetjax.arguments import Count, Fraction, NotNegative
from hetjax.merge import Merge
from hetjax.optimizers import Optimizer
from hetjax.sampling.biased import PoolFactor, PoolFormula
from hetjax.schedule import LearningRateLike
from hetjax.strategies.local_steps import Steps, in_rounds, steps_of
from hetjax.strategies.step_rules import learner
from hetjax.strategies.types import Strategy, factory
from hetjax.traced_settings import is_given

Aggregation = Literal["average", "steps", "fed_nova", "fed_acc", "fed_adp"]


@factory
def local_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    momentum: Fraction | None = None,
    reset_momentum: bool = False,
    weight_decay: NotNegative = 0.0,
    aggregation: Aggregation = "average",
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Local SGD: worker i does tau_i local steps, then all continue from their average.

        x = sum_i p_i x^i

    `local_steps` is tau: one number for all workers (balanced), one for each, or
    "measured:32", which is 32 for the fastest worker and proportionally fewer for
    slower workers, but at least 1 (unbalanced). `aggregation` is "average" (p_i = 1/m,
    eq. 3), "steps" (p_i = tau_i / sum tau_k, eq. 4), "fed_nova", "fed_acc" or
    "fed_adp". `momentum` (default 0.9) is local to each worker and continues from round
    to round, except with `reset_momentum` (for the two averages) and with FedNova,
    which always resets it. `optimizer` is in place of SGD (`hetjax.strategies`); its
    state stays with the worker. With `momentum=0.0` this is FedAvg, with equal
    weights and all clients in every round. Source: Biased Local SGD, Section 3;
    docs/algorithms E.1.
    """
    if momentum is None:
        momentum = 0.9 if optimizer is None else 0.0
    merging = _aggregation(aggregation, momentum, reset_momentum)
    if optimizer is not None and (reset_momentum or aggregation == "fed_nova"):
        what = "reset_momentum=True" if reset_momentum else "aggregation='fed_nova'"
        raise ValueError(
            f"{what} concerns the momentum of SGD: leave it out with an optimizer"
        )
    update, learning_rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = in_rounds(local_steps, batch_size)
    strategy = Strategy(policy, update, merging, batch_size, learning_rate)
    return strategy._replace(settings={"momentum": momentum})


@factory
def biased_local_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = "measured:32",
    pool_factor: PoolFactor | None = None,
    sampler: Literal["uniform", "unified", "separated"] = "separated",
    aggregation: Aggregation = "steps",
    pool_formula: PoolFormula = "steps",
    momentum: Fraction | None = None,
    reset_momentum: bool = False,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
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
    strategy = local_sgd(
        batch_size=batch_size,
        learning_rate=learning_rate,
        local_steps=local_steps,
        momentum=momentum,
        reset_momentum=reset_momentum,
        weight_decay=weight_decay,
        aggregation=aggregation,
        optimizer=optimizer,
    )
    settings = {"momentum": strategy.settings["momentum"]}
    if sampler == "uniform":
        return strategy._replace(settings=settings)
    biased = sampling.biased(
        local_steps=steps_of(local_steps, batch_size),
        pool_factor=pool_factor,
        unified=sampler == "unified",
        pool_formula=pool_formula,
    )
    return strategy._replace(sampler=biased, settings=settings)


@factory
def fed_nova(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    local_steps: Steps = "measured:32",
    momentum: Fraction = 0.0,
    proximal: NotNegative = 0.0,
    server_momentum: Fraction = 0.0,
) -> Strategy:
    """Local SGD with different numbers of steps, averaged per step: FedNova.

    `momentum` is local to each worker; `proximal` (mu), which excludes it, is the
    weight of a proximal term that pulls a worker back to the round's start;
    `server_momentum` is the server's momentum. Source: `merge.fed_nova`.
    """
    merging = merge.fed_nova(
        momentum=momentum, proximal=proximal, server_momentum=server_momentum
    )
    update = local.sgd(momentum=momentum)
    if is_given(proximal):
        update = local.proximal(proximal=proximal)
    policy = in_rounds(local_steps, batch_size)
    return Strategy(policy, update, merging, batch_size, learning_rate)


@factory
def fed_acc(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = "measured:32",
    momentum: Fraction = 0.0,
    power: NotNegative = 1.0,
    weight_by_share: bool = False,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Local SGD that weights models by their accuracy on held-out data: FedAcc.

    A tenth of the training split, at most 1,000 examples, is held out for that.
    `optimizer` is in place of SGD (`hetjax.strategies`). Source: `merge.fed_acc`.
    """
    update, learning_rate = learner(optimizer, learning_rate, momentum=momentum)
    merging = merge.fed_acc(power=power, weight_by_share=weight_by_share)
    policy = in_rounds(local_steps, batch_size)
    return Strategy(policy, update, merging, batch_size, learning_rate)


@factory
def fed_adp(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = "measured:32",
    momentum: Fraction = 0.0,
    alpha: NotNegative = 5.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Local SGD that weights models by the direction in which they moved: FedAdp.

    `optimizer` is in place of SGD (`hetjax.strategies`). Source: `merge.fed_adp`.
    """
    update, learning_rate = learner(optimizer, learning_rate, momentum=momentum)
    policy = in_rounds(local_steps, batch_size)
    merging = merge.fed_adp(alpha=alpha)
    return Strategy(policy, update, merging, batch_size, learning_rate)


def _aggregation(name: Aggregation, momentum: float, reset: bool) -> Merge:
    """The merge of that name, for workers with this momentum."""
    if reset and name in ("fed_acc", "fed_adp"):
        raise ValueError(
            f"reset_momentum=True: {name} keeps its workers' momentum; choose another "
            "aggregation"
        )
    if name == "average":
        return merge.average(reset=reset)
    if name == "steps":
        return merge.average(weights="local_steps", reset=reset)
    if name == "fed_nova":
        return merge.fed_nova(momentum=momentum)
    return merge.fed_acc() if name == "fed_acc" else merge.fed_adp()
