"""Local SGD with unequal steps again, in NumPy float64: docs/algorithms E and I."""

import math

import numpy as np
from oracle_world import bulk_synchronous


def local_sgd(
    world,
    *,
    batch_size,
    learning_rate,
    local_steps=32,
    momentum=0.9,
    weight_decay=0.0,
    aggregation="average",
    reset_momentum=False,
    proximal=0.0,
    seconds=0.0,
    **settings,
):
    """v <- rho v + g + wd x;   x <- x - eta v;   then all models become one.

    With `proximal` x <- x - eta (g + mu (x - start of the round)). The sampler is told
    each step's loss, from before the step, at the merge.
    """
    members = tuple(world.workers)
    tau = numbers_of_steps(world, local_steps, batch_size)
    aggregate = AGGREGATIONS[aggregation](world, tau, momentum, proximal, **settings)
    x, v = world.start, dict.fromkeys(members, 0.0)

    def compute(batches, eta):
        nonlocal x
        ends, heard = [], []
        for i in members:
            x_i = x
            if aggregation == "fed_nova" or reset_momentum:
                v[i] = 0.0
            for rows in batches[i]:
                heard.append((i, rows, world.problem.losses(x_i, rows)))
                g = world.gradient(x_i, rows) + weight_decay * x_i
                v[i] = momentum * v[i] + g + proximal * (x_i - x)
                x_i = x_i - eta * v[i]
            ends.append(x_i)
        for i, rows, losses in heard:
            world.observe(i, rows, losses)
        x = aggregate(x, ends, eta)
        return x

    bulk_synchronous(
        world,
        members,
        dict(enumerate(tau)),
        batch_size,
        compute,
        learning_rate=learning_rate,
        seconds=seconds,
    )


def numbers_of_steps(world, local_steps, batch_size):
    """E.1: tau_f for the fastest, in proportion to speed for the others."""
    n = len(world.workers)
    if isinstance(local_steps, str):
        fastest = int(local_steps.removeprefix("measured:"))
        seconds = [k.fixed + batch_size * k.per_example for k in world.clock.workers]
        return [max(1, round(fastest * min(seconds) / t)) for t in seconds]
    return [local_steps] * n if isinstance(local_steps, int) else list(local_steps)


# An aggregation is created per run and called with (x, all workers' ends, eta).


def average(world, tau, momentum, proximal):
    """Eq. (3)."""
    return lambda x, ends, eta: np.mean(ends, 0)


def by_steps(world, tau, momentum, proximal):
    """Eq. (4)."""
    return lambda x, ends, eta: np.average(ends, 0, weights=tau)


def nova(world, tau, momentum, proximal, server_momentum=0.0):
    """||a_i|| step by step; p_i are the shares of the data."""
    p, buffer = world.shares, 0.0

    def norm(local_steps, eta):
        a = counter = 0.0
        for _ in range(local_steps):
            counter = momentum * counter + 1
            a = (1 - eta * proximal) * a + 1 if proximal else a + counter
        return a

    def aggregate(x, ends, eta):
        nonlocal buffer
        a = [norm(local_steps, eta) for local_steps in tau]
        effective = np.dot(p, tau if proximal else a)
        gains = [
            p_i * (end - x) / a_i for p_i, end, a_i in zip(p, ends, a, strict=True)
        ]
        gain = effective * sum(gains)
        buffer = server_momentum * buffer - gain / eta
        return x - eta * buffer

    return aggregate


def by_accuracy(world, tau, momentum, proximal, power=1.0, weight_by_share=False):
    """Weights by the accuracies on the held-out rows."""

    def aggregate(x, ends, eta):
        right = [world.problem.right(end, world.held_out) for end in ends]
        raw = np.array(right) ** power * (world.shares if weight_by_share else 1.0)
        return np.average(ends, 0, weights=raw if raw.sum() else None)

    return aggregate


def by_angle(world, tau, momentum, proximal, alpha=5.0):
    """Wu & Wang: cosines with the mean move, smoothed over rounds, Gompertz weights."""
    d = world.shares
    smooth, rounds = np.zeros(len(tau)), 0

    def aggregate(x, ends, eta):
        nonlocal smooth, rounds
        g = [-(end - x) / eta for end in ends]
        mean = np.average(g, 0, weights=d)
        size = np.linalg.norm
        cosines = [np.dot(mean, g_i) / (size(mean) * size(g_i)) for g_i in g]
        theta = np.array([math.acos(c) for c in cosines])
        rounds += 1
        smooth = ((rounds - 1) * smooth + theta) / rounds
        f = alpha * (1 - np.exp(-np.exp(-alpha * (smooth - 1))))
        return np.average(ends, 0, weights=d * np.exp(f))

    return aggregate


AGGREGATIONS = {
    "average": average,
    "steps": by_steps,
    "fed_nova": nova,
    "fed_acc": by_accuracy,
    "fed_adp": by_angle,
}


def biased_local_sgd(
    world, *, pool_factor=None, sampler="separated", pool_formula="steps", **settings
):
    """Only the sampler is a different one, and that is taken as given."""
    local_sgd(world, **{"aggregation": "steps", **settings})


def fed_nova(world, *, local_steps="measured:32", momentum=0.0, **settings):
    local_sgd(
        world,
        local_steps=local_steps,
        momentum=momentum,
        aggregation="fed_nova",
        **settings,
    )


def fed_acc(world, *, local_steps="measured:32", momentum=0.0, **settings):
    """Measuring takes a third of a step: all at once, or the fastest for all."""
    n = len(world.held_out)
    looks = [(k.fixed + n * k.per_example) / 3 for k in world.clock.workers]
    seconds = min(max(looks), min(looks) * len(looks))
    settings |= {"local_steps": local_steps, "momentum": momentum, "seconds": seconds}
    local_sgd(world, aggregation="fed_acc", **settings)


def fed_adp(world, *, local_steps="measured:32", momentum=0.0, **settings):
    local_sgd(
        world,
        local_steps=local_steps,
        momentum=momentum,
        aggregation="fed_adp",
        **settings,
    )
