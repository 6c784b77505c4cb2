"""Asynchronous servers that apply gradients, in NumPy float64: L.6 to L.8 and L.13.

All rounds are one step; a gradient is taken at the model that the worker was given.
"""

import numpy as np
from vector_world import Server


def each_gradient(workers, arrive):
    """On each report: arrive(server, i, gradient) does all but the waiting."""
    server = Server(workers)
    for i in range(len(workers)):
        workers.begin(i)
    while report := workers.wait():
        i, (t,) = report
        grad = workers.gradient(i, t, server.given[i])
        arrive(server, i, grad)
        for j in workers.idle:
            workers.begin(j)
    return server


def async_sgd(workers, *, learning_rate, delay_adaptive=False):
    """c <- c - eta grad; delay-adaptive: the rate is eta k / max(k, tau)."""
    k = len(workers)

    def arrive(server, i, grad):
        tau = server.hear(i)
        rate = learning_rate * (k / max(k, tau) if delay_adaptive else 1.0)
        server.change(server.center - rate * grad)
        server.merges += 1
        server.give(i)

    return each_gradient(workers, arrive)


def cancel_and_give(server, others):
    """End these workers' rounds; they begin again at c."""
    for j in others:
        server.workers.cancel(j)
        server.give(j)


def ringmaster_asgd(workers, *, learning_rate, max_delay, stop="cancel"):
    """Gradients with a delay below R are applied.

    stop="ignore": later ones are not; "cancel": a worker whose delay becomes R begins
    again at once, so that there are none. `max_delay` may be a function of updates.
    """

    def bound(updates):
        return max_delay(updates) if callable(max_delay) else max_delay

    def arrive(server, i, grad):
        enters = server.stale(i) < bound(server.version)
        if stop == "cancel":
            assert enters
        if enters:
            server.hear(i)
            server.change(server.center - learning_rate * grad)
            server.merges += 1
        else:
            server.staleness.append(server.stale(i))
        server.give(i)
        if stop == "cancel" and enters:
            late = [j for j in range(len(workers)) if j != i]
            late = [j for j in late if server.stale(j) >= bound(server.version)]
            cancel_and_give(server, late)

    return each_gradient(workers, arrive)


def gathered(workers, learning_rate, stop, complete, mean):
    """Gradients at the present c enter; c <- c - eta mean(G, b) when complete(b).

    stop="cancel": unfinished rounds end then; "ignore": they are dropped later.
    """
    k = len(workers)
    sums, counts = [0.0] * k, [0] * k

    def arrive(server, i, grad):
        nonlocal sums, counts
        if server.stale(i):
            assert stop == "ignore"
            server.staleness.append(server.stale(i))
            server.give(i)
            return
        server.hear(i)
        server.merges += 1
        sums[i], counts[i] = sums[i] + grad, counts[i] + 1
        done = complete(counts)
        if done:
            server.change(server.center - learning_rate * mean(sums, counts))
            sums, counts = [0.0] * k, [0] * k
            server.give(i)  # otherwise it goes on at the same c
        if done and stop == "cancel":
            cancel_and_give(server, [j for j in range(k) if j != i])

    return each_gradient(workers, arrive)


def rennala_sgd(workers, *, learning_rate, batches, stop="cancel"):
    """The mean of the first B gradients at c, fast workers several times."""
    return gathered(
        workers,
        learning_rate,
        stop,
        lambda counts: sum(counts) >= batches,
        lambda sums, counts: sum(sums) / batches,
    )


def malenia_sgd(workers, *, learning_rate, batches, stop="cancel"):
    """The mean of the workers' means, when the harmonic mean of b_i is S / k."""
    k = len(workers)

    def complete(b):
        return min(b) >= 1 and 1 / np.mean([1 / n for n in b]) >= batches / k

    def mean(sums, b):
        return np.mean([g / n for g, n in zip(sums, b, strict=True)], 0)

    return gathered(workers, learning_rate, stop, complete, mean)


def ringleader_asgd(workers, *, learning_rate, refresh=False):
    """Ringleader: k steps for each full table of the workers' mean gradients.

    While the table lacks a worker, reports enter. Then k steps: for the worker that
    completed it, and at the first report of each other one, whose gradient enters
    before. Those get the new c; all others go on with theirs, or get c (`refresh`).
    Further reports of a worker with a step enter a second table, the next first one.
    """
    k = len(workers)
    zeros = [(0.0, 0)] * k
    first, second, updated = list(zeros), list(zeros), set()

    def entered(table, i, grad):
        table[i] = table[i][0] + grad, table[i][1] + 1

    def arrive(server, i, grad):
        nonlocal first, second, updated
        server.hear(i)
        server.merges += 1
        steps = i not in updated
        entered(first if steps else second, i, grad)
        if steps and all(n for _, n in first):
            step = np.mean([g / n for g, n in first], 0)
            server.change(server.center - learning_rate * step)
            updated.add(i)
            server.give(i)
        elif refresh:
            server.give(i)
        if len(updated) == k:
            first, second, updated = second, list(zeros), set()

    return each_gradient(workers, arrive)


def rescaled_asgd(workers, *, learning_rate):
    """Async SGD with eta_i = eta t_i (sum_j 1 / t_j) / k."""
    per_second = sum(1 / t for t in workers.seconds) / len(workers)

    def arrive(server, i, grad):
        server.hear(i)
        rate = learning_rate * workers.seconds[i] * per_second
        server.change(server.center - rate * grad)
        server.merges += 1
        server.give(i)

    return each_gradient(workers, arrive)


def dc_asgd(workers, *, learning_rate, strength=None, decay=None):
    """c <- c - eta (grad + L grad^2 (c - s_i)).

    L is `strength`, .04; with `decay` u: q_i <- u q_i + (1 - u) grad^2, of worker i,
    and L = strength / sqrt(q_i + 1e-7), strength 2.
    """
    if strength is None:
        strength = 0.04 if decay is None else 2.0
    q = [0.0] * len(workers)

    def arrive(server, i, grad):
        server.hear(i)
        weight = strength
        if decay is not None:
            q[i] = decay * q[i] + (1 - decay) * grad**2
            weight = strength / np.sqrt(q[i] + 1e-7)
        away = server.center - server.given[i]
        server.change(server.center - learning_rate * (grad + weight * grad**2 * away))
        server.merges += 1
        server.give(i)

    return each_gradient(workers, arrive)
