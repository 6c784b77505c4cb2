"""Asynchronous SGD: parameter servers, Hogwild!, MagmaDNN, Downpour, EASGD, gossip."""

import optax

from hetjax import local, merge, schedule
from hetjax.schedule import RateLike
from hetjax.strategies.baselines import central
from hetjax.strategies.types import (
    Strategy,
    fraction,
    not_negative,
    positive,
    settings,
)

SERVERS = ("adagrad", "sgd")


def async_sgd(
    *,
    batch_size: int,
    rate: RateLike,
    momentum: float = 0.0,
    ema: bool = False,
    weight_decay: float = 0.0,
    optimizer: optax.GradientTransformation | None = None,
    max_staleness: int | None = None,
) -> Strategy:
    """The standard parameter server: whoever has a gradient pushes it and fetches.

        w <- w - eta g_i(w_old);   w_i <- w            w_old: as i fetched it

    A push and a fetch queue for the link, and their worker waits for them. `momentum`
    (`ema`) and `weight_decay`, or an `optimizer` built with rate 1, are the server's.
    A worker more than `max_staleness` steps ahead of the slowest pushes, waits, and
    fetches when it goes on (stale synchronous parallel). Source: ALGORITHMS F.3, K.2.
    """
    given = settings(locals())
    positive(batch_size=batch_size)
    return Strategy(
        schedule.free_running(batch_size=batch_size, max_staleness=max_staleness),
        local.gradient(),
        merge.gradient_aggregation(central(momentum, ema, optimizer, weight_decay)),
        batch_size,
        rate,
        settings=given,
        name="async_sgd",
    )


def hogwild(
    *,
    batch_size: int,
    rate: RateLike,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    max_staleness: int | None = None,
) -> Strategy:
    """Hogwild!: a shared model that everybody reads and adds to, without any lock.

        w <- w - eta g_i(w_old)                        at the end of each step

    No link, no queue, no waiting; an addition is one whole (races between components
    are not simulated). Its authors have no `momentum`, and multiply the rate by 0.9
    after each epoch: give a `schedule.Rate`. The shared model's `momentum` and
    `weight_decay`, and `max_staleness`, are as in `async_sgd`. Source: Hogwild! (Niu
    et al. 2011), CROSSBOW 5.5; ALGORITHMS F.5.
    """
    given = settings(locals())
    positive(batch_size=batch_size)
    return Strategy(
        schedule.free_running(
            batch_size=batch_size, trips=0, max_staleness=max_staleness
        ),
        local.gradient(),
        merge.gradient_aggregation(central(momentum, False, None, weight_decay)),
        batch_size,
        rate,
        settings=given,
        name="hogwild",
    )


def magma_async_sgd(
    *,
    batch_size: int,
    rate: RateLike,
    momentum: float = 0.99,
    subtract: str = "before",
    tick_seconds: float | None = None,
    copy_seconds: float | None = None,
) -> Strategy:
    """MagmaDNN's asynchronous SGD: a master that steps all the time and never waits.

        master   z <- beta z + (1 - beta) g / (N - 1);   w <- w - alpha z    every tick
        slaves   w_i <- w;   g <- g - g_i;   g_i <- gradient at w_i;   g <- g + g_i

    With `subtract="swap"` the old g_i stays until the new one is there. beta is
    `momentum`. The slowest worker is the master. See `schedule.ticking` for seconds.
    Source: MagmaDNN, Algorithms 2 and 3; ALGORITHMS F.3.
    """
    given = settings(locals())
    positive(batch_size=batch_size)
    fraction(momentum=momentum)
    policy = schedule.ticking(
        batch_size=batch_size,
        tick_seconds=tick_seconds,
        copy_seconds=copy_seconds,
        subtract=subtract,
    )
    return Strategy(
        policy,
        local.gradient(),
        merge.ticking(momentum=momentum),
        batch_size,
        rate,
        settings=given,
        name="magma_async_sgd",
    )


def downpour(
    *,
    batch_size: int,
    rate: RateLike,
    n_push: int = 1,
    n_fetch: int = 1,
    server: str = "adagrad",
    server_rate: float | None = None,
    wait: bool = False,
) -> Strategy:
    """Downpour SGD: pushes and fetches that travel beside the work.

        x <- x - eta g;   accrued <- accrued + g       at every worker, every step
        p <- p - gamma accrued / sqrt(sum of squares)  at the server, per parameter

    A worker pushes what it accrued every `n_push` steps and asks for p every `n_fetch`;
    it goes on meanwhile (`schedule.mailbox`), or, with `wait`, after every `n_push`
    steps it pushes and waits for p, and `n_fetch` is the same (as mpiT's does, whose
    server is plain, and which pushes after its very first step, too). `server`:
    "adagrad", or "sgd" without the root. gamma = `server_rate` eta, by default 0.1 for
    Adagrad, whose first step is gamma in every parameter, and 1 for SGD; optax's
    Adagrad has 1e-7 under the root.
    Source: DistBelief (Dean et al. 2012); ALGORITHMS G.5.
    """
    given = settings(locals())
    positive(batch_size=batch_size, server_rate=server_rate)
    if server not in SERVERS:
        raise ValueError(f"server={server!r}: choose one of {SERVERS}")
    adagrad = optax.adagrad(1.0, initial_accumulator_value=0.0)
    relative = server_rate or (0.1 if server == "adagrad" else 1.0)
    if wait and n_push != n_fetch:
        raise ValueError(
            f"n_push={n_push}, n_fetch={n_fetch}: who waits pushes and fetches at the "
            "same time; give equal numbers"
        )
    if wait:
        policy = schedule.free_running(batch_size=batch_size, steps=n_push)
    else:
        policy = schedule.mailbox(batch_size=batch_size, n_push=n_push, n_fetch=n_fetch)
    return Strategy(
        policy,
        local.sgd(),
        merge.downpour(adagrad if server == "adagrad" else None, server_rate=relative),
        batch_size,
        rate,
        settings=given,
        name="downpour",
    )


def easgd(
    *,
    batch_size: int,
    rate: RateLike,
    tau: int = 1,
    beta: float = 0.9,
    alpha: float | None = None,
    max_staleness: int | None = None,
) -> Strategy:
    """Asynchronous EASGD: an elastic move between a worker and the centre.

        d = alpha (x - x~);   x~ <- x~ + d;   x <- x - eta g(x) - d

    every `tau` steps, g at x before the move. alpha is `beta` / p for p workers unless
    given. A worker more than `max_staleness` works of `tau` steps ahead of the slowest
    waits after its move. Source: EASGD (Zhang et al. 2015), Algorithm 1; ALGORITHMS
    G.2.
    """
    given = settings(locals())
    return _elastic(
        local.sgd(), batch_size, rate, tau, beta, alpha, max_staleness
    )._replace(settings=given, name="easgd")


def eamsgd(
    *,
    batch_size: int,
    rate: RateLike,
    tau: int = 1,
    beta: float = 0.9,
    alpha: float | None = None,
    momentum: float = 0.99,
    weight_decay: float = 0.0,
    max_staleness: int | None = None,
) -> Strategy:
    """EASGD with Nesterov's momentum at every worker: EAMSGD.

        v <- delta v - eta g(x + delta v);   x <- x + v         (`local.look_ahead`)

    delta is `momentum`; the centre has none. Source: EASGD (Zhang et al. 2015),
    Algorithm 2; ALGORITHMS G.3.
    """
    given = settings(locals())
    fraction(momentum=momentum)
    not_negative(weight_decay=weight_decay)
    rule = local.look_ahead(momentum=momentum, weight_decay=weight_decay)
    return _elastic(rule, batch_size, rate, tau, beta, alpha, max_staleness)._replace(
        settings=given, name="eamsgd"
    )


def _elastic(
    rule: local.LocalRule,
    batch_size: int,
    rate: RateLike,
    tau: int,
    beta: float,
    alpha: float | None,
    max_staleness: int | None,
) -> Strategy:
    positive(batch_size=batch_size, tau=tau, beta=beta, alpha=alpha)
    return Strategy(
        schedule.free_running(
            batch_size=batch_size,
            steps=tau,
            max_staleness=max_staleness,
            refetch=False,
        ),
        rule,
        merge.elastic(alpha=alpha, beta=beta),
        batch_size,
        rate,
    )


def ad_psgd(*, batch_size: int, rate: RateLike, partner_seed: int = 0) -> Strategy:
    """Gossip: who arrives averages with a random other worker, then takes its step.

        x_i, x_j <- (x_i + x_j) / 2;   x_i <- x_i - gamma g_i

    g_i at the copy that i began with; j works on meanwhile. The mean of all models is
    evaluated. Source: AD-PSGD (Lian et al. 2018); ALGORITHMS G.6.
    """
    given = settings(locals())
    positive(batch_size=batch_size)
    partners = schedule.random_partner(partner_seed)
    return Strategy(
        schedule.free_running(batch_size=batch_size, partners=partners),
        local.gradient(),
        merge.gossip(),
        batch_size,
        rate,
        settings=given,
        name="ad_psgd",
    )
