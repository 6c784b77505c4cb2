"""The asynchronous strategies again, in NumPy float64: ALGORITHMS F and G.

What is taken as given says `oracle_world`, and AD-PSGD's random partners.
"""

from collections import Counter

import numpy as np

from hetjax.schedule import random_partner


def free_running(
    world, size, rate, begin, arrive, *, steps=1, max_staleness=None, fetch=None, trips
):
    """Whoever arrives merges alone and goes on, unless it is too far ahead.

    `begin(k)` is asked when k gets work, and what it says is told at k's arrival:
    `arrive(k, said, rows, eta)` returns (the model, passive members). With `fetch(k)`
    who is held back has only pushed, and fetches when it goes on. Returns how often
    somebody was held back.
    """
    works = [0] * len(world.workers)
    under_way, held, taken = {}, [], Counter()
    bound = np.inf if max_staleness is None else max_staleness

    def too_far(j):
        return works[j] - min(works) > bound

    def give(k):
        under_way[k] = begin(k), world.dispatch(k, steps, size), world.eta(rate)

    for k in world.workers:
        give(k)
    while (k := world.wait()) is not None:
        model, passive = arrive(k, *under_way[k])
        works[k] += 1
        half = fetch is not None and too_far(k)
        order = {"op": "push", "trips": trips // 2} if half else {"trips": trips}
        world.merge((k,), model, passive=passive, **order)
        taken["held"] += too_far(k)
        waiting = [*held, k]
        held = [j for j in waiting if too_far(j)]
        released = [j for j in waiting if not too_far(j)]
        for j in released:
            if fetch and j != k:
                world.merge((j,), None, op="fetch", trips=trips // 2)
                fetch(j)
        for j in released:
            give(j)
    return taken


def async_sgd(
    world,
    *,
    batch_size,
    rate,
    momentum=0.0,
    ema=False,
    weight_decay=0.0,
    max_staleness=None,
    trips=2,
):
    """w <- w - eta z, z of gradients at what a worker fetched after its last push."""
    w, z = world.start, 0.0
    fetched = dict.fromkeys(world.workers, w)

    def arrive(k, old, batches, eta):
        nonlocal w, z
        share = 1 - momentum if ema else 1.0
        g = world.gradient(old, batches[0]) + weight_decay * w
        z = momentum * z + share * g
        w = w - eta * z
        fetched[k] = w
        return w, ()

    def fetch(k):
        fetched[k] = w

    return free_running(
        world,
        batch_size,
        rate,
        fetched.get,
        arrive,
        max_staleness=max_staleness,
        fetch=fetch,
        trips=trips,
    )


def hogwild(world, **settings):
    """F.5, as CROSSBOW reads it: no link in between."""
    return async_sgd(world, **settings, trips=0)


def easgd(
    world,
    *,
    batch_size,
    rate,
    tau=1,
    beta=0.9,
    alpha=None,
    max_staleness=None,
    momentum=0.0,
    weight_decay=0.0,
):
    """G.2 with G.3's local step (momentum 0 is plain SGD).

    Every tau steps d = alpha (x - x~) of x before a step, which goes to x~ at once and
    comes off x after that step.
    """
    p = len(world.workers)
    alpha = beta / p if alpha is None else alpha
    center = world.start
    x = dict.fromkeys(world.workers, center)
    v = dict.fromkeys(world.workers, 0.0)
    d = dict.fromkeys(world.workers, 0.0)

    def arrive(k, _, batches, eta):
        nonlocal center
        for t, rows in enumerate(batches):
            ahead = x[k] + momentum * v[k]
            g = world.gradient(ahead, rows) + weight_decay * ahead
            v[k] = momentum * v[k] - eta * g
            x[k] = x[k] + v[k]
            if t == 0:
                x[k] = x[k] - d[k]
        d[k] = alpha * (x[k] - center)
        center = center + d[k]
        return center, ()

    settings = {"steps": tau, "max_staleness": max_staleness, "trips": 2}
    return free_running(world, batch_size, rate, lambda k: None, arrive, **settings)


def eamsgd(world, *, momentum=0.99, **settings):
    return easgd(world, momentum=momentum, **settings)


def ad_psgd(world, *, batch_size, rate, partner_seed=0):
    """G.6: gradients at the copy that i began with, the mean of all models is seen."""
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

    return free_running(world, batch_size, rate, x.__getitem__, arrive, trips=2)


def downpour(
    world,
    *,
    batch_size,
    rate,
    n_push=1,
    n_fetch=1,
    server="adagrad",
    server_rate=None,
    wait=False,
):
    """G.5; a fetched model replaces the worker's at a step's end once it is there.

    At the server Adagrad's root has optax's 1e-7 beside the sum of squares.
    """
    if server_rate is None:
        server_rate = 0.1 if server == "adagrad" else 1.0
    if wait:
        assert server == "sgd"
        return downpour_that_waits(world, batch_size, rate, n_push, server_rate)
    p, squares = world.start, np.zeros_like(world.start)
    x = dict.fromkeys(world.workers, p)
    accrued = dict.fromkeys(world.workers, 0.0)
    step = dict.fromkeys(world.workers, 0)
    mailbox, under_way = {}, {}

    def give(k):
        eta = world.eta(rate)
        under_way[k] = world.dispatch(k, 1, batch_size)[0], eta

    for k in world.workers:
        give(k)
    while (k := world.wait()) is not None:
        rows, eta = under_way[k]
        g = world.gradient(x[k], rows)
        accrued[k] = accrued[k] + g
        x[k] = x[k] - eta * g
        done, trips = [], 0
        if k in mailbox and mailbox[k][1] <= world.now:
            x[k] = mailbox.pop(k)[0]
            done.append("deliver")
        if step[k] % n_push == 0:
            squares = squares + accrued[k] ** 2
            root = np.sqrt(squares + 1e-7) if server == "adagrad" else 1.0
            p = p - server_rate * eta * accrued[k] / root
            accrued[k] = 0.0
            trips += 1
            done.append("push")
        step[k] += 1
        asks = step[k] % n_fetch == 0 and k not in mailbox
        if asks:
            trips += 1
            done.append("request")
        if done:
            transfer = world.merge((k,), p, trips=trips, blocking=False)
        if asks:
            mailbox[k] = p, transfer.finish
        give(k)


def downpour_that_waits(world, size, rate, su, server_rate):
    """mpiT's: after every su steps their gradients go to p, and x is p."""
    p = world.start
    x = dict.fromkeys(world.workers, p)

    def arrive(k, _, batches, eta):
        nonlocal p
        accrued = 0.0
        for rows in batches:
            g = world.gradient(x[k], rows)
            x[k] = x[k] - eta * g
            accrued = accrued + g
        p = p - server_rate * eta * accrued
        x[k] = p
        return p, ()

    free_running(world, size, rate, lambda k: None, arrive, steps=su, trips=2)


def magma_async_sgd(
    world,
    *,
    batch_size,
    rate,
    momentum=0.99,
    subtract="before",
    tick_seconds=None,
    copy_seconds=None,
):
    """F.3, tick by tick; the master is the slowest worker.

    A slave's copy is of its end; the master's steps up to an event come before it.
    """
    beta = momentum
    costs = [k.fixed + batch_size * k.per_example for k in world.clock.workers]
    master = costs.index(max(costs))
    slaves = [k for k in world.workers if k != master]
    tick = tick_seconds or costs[master] / 10
    copy = copy_seconds or costs[master] / 10
    w, z, g = world.start, 0.0, np.zeros_like(world.start)
    mine = dict.fromkeys(slaves, 0.0)  # what of g is the slave's
    copies, rows, ticks = {}, {}, 0
    for k in slaves:
        world.dispatch(k, 0, batch_size, copy)
    while (k := world.wait()) is not None:
        while (ticks + 1) * tick <= world.now:
            z = beta * z + (1 - beta) * g / len(slaves)
            w = w - rate * z
            ticks += 1
        if k in rows:  # its gradient is there
            new = world.gradient(copies[k], rows.pop(k))
            g = g + new - mine[k]
            mine[k] = new
            world.merge((k,), w, trips=1)
            world.dispatch(k, 0, batch_size, copy)
            continue
        copies[k] = w
        if subtract == "before":  # which needs the lock
            g = g - mine[k]
            mine[k] = 0.0
            world.merge((k,), w, trips=1)
        else:
            world.merge((k,), w, trips=0, blocking=False)
        (rows[k],) = world.dispatch(k, 1, batch_size)
