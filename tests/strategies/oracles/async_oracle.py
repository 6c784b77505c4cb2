"""The asynchronous strategies again, in NumPy float64: docs/algorithms F and G.

`oracle_world` says what is taken as given; AD-PSGD's random partners are given as well.
"""

from collections import Counter

import numpy as np

from hetjax.machine.types import MergeOp
from hetjax.schedule import random_partner


def asynchronous(
    world,
    size,
    learning_rate,
    begin,
    arrive,
    *,
    local_steps=1,
    max_staleness=None,
    fetch=None,
    transfers,
):
    """An arriving worker merges alone and goes on, unless it is too far ahead.

    `begin(k)` is called when k gets a round, and its result is passed on when k
    arrives: `arrive(k, said, rows, eta)` returns (the model, partners). With
    `fetch(k)`, a worker that is held back has only pushed, and fetches when it goes on.
    Returns how often a worker was held back.
    """
    local_rounds = [0] * len(world.workers)
    under_way, held, taken = {}, [], Counter()
    bound = np.inf if max_staleness is None else max_staleness

    def too_far(j):
        return local_rounds[j] - min(local_rounds) > bound

    def give(k):
        under_way[k] = (
            begin(k),
            world.dispatch(k, local_steps, size),
            world.eta(learning_rate),
        )

    for k in world.workers:
        give(k)
    while (k := world.wait()) is not None:
        model, partners = arrive(k, *under_way[k])
        local_rounds[k] += 1
        half = fetch is not None and too_far(k)
        fields = (
            {"op": MergeOp.PUSH, "transfers": transfers // 2}
            if half
            else {"transfers": transfers}
        )
        world.merge((k,), model, partners=partners, **fields)
        taken["held"] += too_far(k)
        waiting = [*held, k]
        held = [j for j in waiting if too_far(j)]
        released = [j for j in waiting if not too_far(j)]
        for j in released:
            if fetch and j != k:
                world.merge((j,), None, op=MergeOp.FETCH, transfers=transfers // 2)
                fetch(j)
        for j in released:
            give(j)
    return taken


def async_sgd(
    world,
    *,
    batch_size,
    learning_rate,
    server_momentum=0.0,
    ema=False,
    weight_decay=0.0,
    max_staleness=None,
    transfers=2,
):
    """w <- w - eta z, with gradients at the model fetched after the last push."""
    w, z = world.start, 0.0
    fetched = dict.fromkeys(world.workers, w)

    def arrive(k, old, batches, eta):
        nonlocal w, z
        share = 1 - server_momentum if ema else 1.0
        g = world.gradient(old, batches[0]) + weight_decay * w
        z = server_momentum * z + share * g
        w = w - eta * z
        fetched[k] = w
        return w, ()

    def fetch(k):
        fetched[k] = w

    return asynchronous(
        world,
        batch_size,
        learning_rate,
        fetched.get,
        arrive,
        max_staleness=max_staleness,
        fetch=fetch,
        transfers=transfers,
    )


def hogwild(world, **settings):
    """F.5, as CROSSBOW interprets it: without a link."""
    return async_sgd(world, **settings, transfers=0)


def easgd(
    world,
    *,
    batch_size,
    learning_rate,
    local_steps=1,
    beta=0.9,
    alpha=None,
    max_staleness=None,
    momentum=0.0,
    weight_decay=0.0,
    lr_decay=0.0,
    lr_decay_power=1.0,
):
    """G.2 with G.3's local step (momentum 0 is plain SGD) and its own weight decay.

    Every local_steps steps d = alpha (x - x~), with x before a step. d is added to x~
    at once and subtracted from x after that step.
    """
    p = len(world.workers)
    alpha = beta / p if alpha is None else alpha
    center = world.start
    x = dict.fromkeys(world.workers, center)
    v = dict.fromkeys(world.workers, 0.0)
    d = dict.fromkeys(world.workers, 0.0)
    steps = dict.fromkeys(world.workers, 0)

    def arrive(k, _, batches, eta):
        nonlocal center
        for t, rows in enumerate(batches):
            ahead = x[k] + momentum * v[k]
            g = world.gradient(ahead, rows) + weight_decay * ahead
            eta_t = eta * (1 + steps[k] * lr_decay) ** -lr_decay_power
            steps[k] += 1
            v[k] = momentum * v[k] - eta_t * g
            x[k] = x[k] + v[k]
            if t == 0:
                x[k] = x[k] - d[k]
        d[k] = alpha * (x[k] - center)
        center = center + d[k]
        return center, ()

    settings = {
        "local_steps": local_steps,
        "max_staleness": max_staleness,
        "transfers": 2,
    }
    return asynchronous(
        world, batch_size, learning_rate, lambda k: None, arrive, **settings
    )


def eamsgd(world, *, momentum=0.99, **settings):
    return easgd(world, momentum=momentum, **settings)


def ad_psgd(world, *, batch_size, learning_rate, partner_seed=0):
    """G.6: gradients at the copy that i began with; the mean of models is evaluated."""
    n = len(world.workers)
    x = [world.start] * n
    partners = random_partner(partner_seed)
    merges = 0

    def arrive(i, copy, batches, eta):
        nonlocal merges
        g = world.gradient(copy, batches[0])
        (j,) = partners(i, merges, n)
        merges += 1
        x[i] = x[j] = (x[i] + x[j]) / 2
        x[i] = x[i] - eta * g
        return np.mean(x, 0), (j,)

    return asynchronous(
        world, batch_size, learning_rate, x.__getitem__, arrive, transfers=2
    )


def downpour(
    world,
    *,
    batch_size,
    learning_rate,
    push_every=1,
    fetch_every=1,
    server="adagrad",
    server_learning_rate=None,
    blocking=False,
):
    """G.5; a fetched model replaces the worker's at the end of a step after it arrived.

    The server's Adagrad adds optax's 1e-7 to the sum of squares under the root.
    """
    if server_learning_rate is None:
        server_learning_rate = 0.1 if server == "adagrad" else 1.0
    if blocking:
        assert server == "sgd"
        return downpour_that_waits(
            world,
            batch_size,
            learning_rate,
            push_every,
            fetch_every,
            server_learning_rate,
        )
    p, squares = world.start, np.zeros_like(world.start)
    x = dict.fromkeys(world.workers, p)
    accrued = dict.fromkeys(world.workers, 0.0)
    step = dict.fromkeys(world.workers, 0)
    mailbox, under_way = {}, {}

    def give(k):
        eta = world.eta(learning_rate)
        under_way[k] = world.dispatch(k, 1, batch_size)[0], eta

    for k in world.workers:
        give(k)
    while (k := world.wait()) is not None:
        rows, eta = under_way[k]
        g = world.gradient(x[k], rows)
        accrued[k] = accrued[k] + g
        x[k] = x[k] - eta * g
        done, transfers = [], 0
        if k in mailbox and mailbox[k][1] <= world.now:
            x[k] = mailbox.pop(k)[0]
            done.append("deliver")
        if step[k] % push_every == 0:
            squares = squares + accrued[k] ** 2
            root = np.sqrt(squares + 1e-7) if server == "adagrad" else 1.0
            p = p - server_learning_rate * eta * accrued[k] / root
            accrued[k] = 0.0
            transfers += 1
            done.append("push")
        step[k] += 1
        asks = step[k] % fetch_every == 0 and k not in mailbox
        if asks:
            transfers += 1
            done.append("request")
        if done:
            transfer = world.merge((k,), p, transfers=transfers, blocking=False)
        if asks:
            mailbox[k] = p, transfer.finish
        give(k)


def downpour_that_waits(
    world, size, learning_rate, push_every, fetch_every, server_learning_rate
):
    """mpiT's variant, with two periods: workers wait for each push and each fetch.

    After steps 1, 2, ...: the accrued gradient is applied to p if push_every divides
    the step, then x is p if fetch_every does. A local round lasts until one is due.
    """
    p = world.start
    x = dict.fromkeys(world.workers, p)
    accrued = dict.fromkeys(world.workers, 0.0)
    step = dict.fromkeys(world.workers, 0)
    under_way = {}

    def give(k):
        t = step[k] + 1
        while t % push_every and t % fetch_every:
            t += 1
        batches = world.dispatch(k, t - step[k], size)
        under_way[k] = batches, world.eta(learning_rate)

    for k in world.workers:
        give(k)
    while (k := world.wait()) is not None:
        batches, eta = under_way[k]
        for rows in batches:
            g = world.gradient(x[k], rows)
            x[k] = x[k] - eta * g
            accrued[k] = accrued[k] + g
        step[k] += len(batches)
        pushes, fetches = step[k] % push_every == 0, step[k] % fetch_every == 0
        if pushes:
            p = p - server_learning_rate * eta * accrued[k]
            accrued[k] = 0.0
        if fetches:
            x[k] = p
        op = MergeOp(pushes * MergeOp.PUSH.value + fetches * MergeOp.FETCH.value)
        world.merge((k,), p, op=op, transfers=pushes + fetches)
        give(k)


def magma_async_sgd(
    world,
    *,
    batch_size,
    learning_rate,
    server_momentum=0.99,
    subtract="before",
    server_step_seconds=None,
    copy_seconds=None,
):
    """F.3, server step by server step; the master is the slowest worker.

    A slave's copy is of the time when copying ends; the master's steps until an event
    come before the event, and so for evaluations: its model is never in transit.
    """
    beta = server_momentum
    costs = [k.fixed + batch_size * k.per_example for k in world.clock.workers]
    master = costs.index(max(costs))
    slaves = [k for k in world.workers if k != master]
    tick = server_step_seconds or costs[master] / 10
    copy = copy_seconds or costs[master] / 10
    w, z, g = world.start, 0.0, np.zeros_like(world.start)
    mine = dict.fromkeys(slaves, 0.0)  # the slave's part of g
    copies, rows, server_steps = {}, {}, 0
    passed = [(0.0, w, z, g, 0)]  # after each event

    def step(w, z, g, n, until):
        while (n + 1) * tick <= until:
            z = beta * z + (1 - beta) * g / len(slaves)
            w = w - learning_rate * z
            n += 1
        return w, z, n

    def visible(instant):
        _, *then = [p for p in passed if p[0] <= instant][-1]
        return step(*then, instant)[0]

    world.visible = visible
    for k in slaves:
        world.dispatch(k, 0, batch_size, copy)
    while (k := world.wait()) is not None:
        w, z, server_steps = step(w, z, g, server_steps, world.now)
        if k in rows:  # its gradient has arrived
            new = world.gradient(copies[k], rows.pop(k))
            g = g + new - mine[k]
            mine[k] = new
            world.merge((k,), w, transfers=1)
            world.dispatch(k, 0, batch_size, copy)
        else:
            copies[k] = w
            if subtract == "before":  # this needs the lock
                g = g - mine[k]
                mine[k] = 0.0
                world.merge((k,), w, transfers=1)
            else:
                world.merge((k,), w, transfers=0, blocking=False)
            (rows[k],) = world.dispatch(k, 1, batch_size)
        passed.append((world.now, w, z, g, server_steps))
