"""Asynchronous SGD: parameter server, Hogwild!, MagmaDNN, Downpour, gossip."""

import optax

from hetjax import local, merge, schedule
from hetjax.merge.merge_checks import check_fraction, check_not_negative, check_positive
from hetjax.schedule import LearningRateLike
from hetjax.strategies.baselines import central
from hetjax.strategies.types import Strategy, factory, settings

SERVERS = ("adagrad", "sgd")


@factory
def async_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    server_momentum: float = 0.0,
    ema: bool = False,
    weight_decay: float = 0.0,
    optimizer: optax.GradientTransformation | None = None,
    max_staleness: int | None = None,
) -> Strategy:
    """The standard parameter server: each worker pushes a gradient and fetches w.

        w <- w - eta g_i(w_old);   w_i <- w            w_old: the model that i fetched

    Pushes and fetches queue for the link, and the worker waits for them. The server
    steps with `server_momentum` (and `ema`) and `weight_decay`, or with an `optimizer`
    that is built with learning rate 1. A worker that is more than `max_staleness` steps
    ahead of the slowest one pushes, waits, and fetches before it continues (stale
    synchronous parallel). Source: docs/algorithms F.3, K.2.
    """
    given = settings(locals())
    check_positive(batch_size=batch_size)
    return Strategy(
        schedule.asynchronous(batch_size=batch_size, max_staleness=max_staleness),
        local.gradient(),
        merge.gradient_aggregation(
            central(server_momentum, ema, optimizer, weight_decay)
        ),
        batch_size,
        learning_rate,
        settings=given,
        name="async_sgd",
    )


@factory
def hogwild(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    server_momentum: float = 0.0,
    weight_decay: float = 0.0,
    max_staleness: int | None = None,
) -> Strategy:
    """Hogwild!: a shared model that all workers read and update without any lock.

        w <- w - eta g_i(w_old)                        at the end of each step

    There is no link, no queue and no waiting; each update is atomic as a whole (races
    between components are not simulated). The authors use no `server_momentum`, and
    multiply the learning rate by 0.9 after each epoch: pass a `LearningRate` for that.
    `server_momentum`, `weight_decay` and `max_staleness` are as in `async_sgd`.
    Source: Hogwild! (Niu et al. 2011), CROSSBOW 5.5; docs/algorithms F.5.
    """
    given = settings(locals())
    check_positive(batch_size=batch_size)
    return Strategy(
        schedule.asynchronous(
            batch_size=batch_size, transfers=0, max_staleness=max_staleness
        ),
        local.gradient(),
        merge.gradient_aggregation(central(server_momentum, False, None, weight_decay)),
        batch_size,
        learning_rate,
        settings=given,
        name="hogwild",
    )


@factory
def magma_async_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    server_momentum: float = 0.99,
    subtract: str = "before",
    server_step_seconds: float | None = None,
    copy_seconds: float | None = None,
) -> Strategy:
    """MagmaDNN's asynchronous SGD: a master that steps continually and never waits.

        master   z <- beta z + (1 - beta) g / (N - 1);   w <- w - alpha z
        slaves   w_i <- w;   g <- g - g_i;   g_i <- gradient at w_i;   g <- g + g_i

    With `subtract="swap"` the old g_i stays in g until the new one replaces it. beta is
    `server_momentum`, alpha the learning rate. The slowest worker is the master and
    steps every `server_step_seconds`; see `schedule.magma_async` for the default
    durations. Source: MagmaDNN, Algorithms 2 and 3; docs/algorithms F.3.
    """
    given = settings(locals())
    check_positive(batch_size=batch_size)
    check_fraction(server_momentum=server_momentum)
    policy = schedule.magma_async(
        batch_size=batch_size,
        server_step_seconds=server_step_seconds,
        copy_seconds=copy_seconds,
        subtract=subtract,
    )
    return Strategy(
        policy,
        local.gradient(),
        merge.magma_async(momentum=server_momentum),
        batch_size,
        learning_rate,
        settings=given,
        name="magma_async_sgd",
    )


@factory
def downpour(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    push_every: int = 1,
    fetch_every: int = 1,
    server: str = "adagrad",
    server_learning_rate: float | None = None,
    blocking: bool = False,
) -> Strategy:
    """Downpour SGD: workers push gradients and fetch the model while they compute.

        x <- x - eta g;   accrued <- accrued + g       at every worker, every step
        p <- p - gamma accrued / sqrt(sum of squares)  at the server, per parameter

    A worker pushes its accrued gradients every `push_every` steps (n_push in the
    paper), requests p every `fetch_every` steps (n_fetch), and continues to compute
    until p arrives. With `blocking` delivery is immediate: the worker waits for each
    push and each fetch, as mpiT's workers do. See `schedule.downpour` for the exact
    steps.

    `server` is "adagrad", or "sgd" without the root. gamma is `server_learning_rate`
    times eta. The default of `server_learning_rate` is 0.1 for Adagrad, whose first
    step is gamma in every parameter, and 1 for SGD. optax's Adagrad adds 1e-7 under the
    root. Source: DistBelief (Dean et al. 2012); docs/algorithms G.5.
    """
    given = settings(locals())
    check_positive(batch_size=batch_size, server_learning_rate=server_learning_rate)
    if server not in SERVERS:
        raise ValueError(f"server={server!r}: choose one of {SERVERS}")
    adagrad = optax.adagrad(1.0, initial_accumulator_value=0.0)
    relative = server_learning_rate
    if relative is None:
        relative = 0.1 if server == "adagrad" else 1.0
    return Strategy(
        schedule.downpour(
            batch_size=batch_size,
            push_every=push_every,
            fetch_every=fetch_every,
            blocking=blocking,
        ),
        local.sgd(),
        merge.downpour(
            adagrad if server == "adagrad" else None, server_learning_rate=relative
        ),
        batch_size,
        learning_rate,
        settings=given,
        name="downpour",
    )


@factory
def ad_psgd(
    *, batch_size: int, learning_rate: LearningRateLike, partner_seed: int = 0
) -> Strategy:
    """Gossip: each worker averages with a random partner, then takes its own step.

        x_i, x_j <- (x_i + x_j) / 2;   x_i <- x_i - gamma g_i

    with g_i at the model that i started from; j continues to compute meanwhile. gamma
    is the learning rate. The mean of all models is evaluated. Source: AD-PSGD (Lian et
    al. 2018); docs/algorithms G.6.
    """
    given = settings(locals())
    check_positive(batch_size=batch_size)
    check_not_negative(partner_seed=partner_seed)
    partners = schedule.random_partner(partner_seed)
    return Strategy(
        schedule.asynchronous(batch_size=batch_size, partners=partners),
        local.gradient(),
        merge.gossip(),
        batch_size,
        learning_rate,
        settings=given,
        name="ad_psgd",
    )
