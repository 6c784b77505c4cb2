"""Synchronous rounds with an outer optimizer, SCAFFOLD and FedProx, in NumPy float64.

Part L.1 and L.12 of the algorithms. D is the mean of s_i - w_i, c the center; an outer
step returns what is subtracted from c.
"""

import numpy as np
from vector_world import LocalSGD, Server, rounds


def sgd(g):
    """g D."""
    return lambda d, eta: g * d


def nesterov(g, b):
    """v <- b v + D; g (D + b v)."""
    v = 0.0

    def step(d, eta):
        nonlocal v
        v = b * v + d
        return g * (d + b * v)

    return step


def heavy_ball(g, b):
    """v <- b v + D; g v."""
    v = 0.0

    def step(d, eta):
        nonlocal v
        v = b * v + d
        return g * v

    return step


def slow(g, b):
    """u <- b u + D / eta; g eta u, with the local rate of the round just done."""
    u = 0.0

    def step(d, eta):
        nonlocal u
        u = b * u + d / eta
        return g * eta * u

    return step


def adaptive(kind, g, b1, b2, tau):
    """m <- b1 m + (1 - b1) D; g m / (sqrt(v) + tau), without bias correction.

    v starts at tau^2.
    """
    m, v = 0.0, tau**2

    def step(d, eta):
        nonlocal m, v
        m = b1 * m + (1 - b1) * d
        v = {
            "adagrad": lambda: v + d**2,
            "adam": lambda: b2 * v + (1 - b2) * d**2,
            "yogi": lambda: v - (1 - b2) * d**2 * np.sign(v - d**2),
        }[kind]()
        return g * m / (np.sqrt(v) + tau)

    return step


def outer(workers, step, *, learning_rate, local_steps=2, **local):
    """All start from c; c <- c - step(D); all take c. Absent members have no say."""
    server, learner = Server(workers), LocalSGD(workers, **local)
    for draws, eta in rounds(workers, local_steps, learning_rate):
        ends = {i: learner(i, draws[i], server.center, eta) for i in draws}
        for i in draws:
            server.hear(i)
        d = np.mean([server.center - w for w in ends.values()], 0)
        server.change(server.center - step(d, eta))
        server.merges += 1
        for i in draws:
            server.give(i)
    return server


def local_sgd(workers, *, proximal=0.0, **settings):
    """The mean of the members' models."""
    return outer(workers, sgd(1.0), proximal=proximal, **settings)


def fed_prox(workers, *, proximal, **settings):
    """Local SGD whose gradients have + mu (w - s_i)."""
    return local_sgd(workers, proximal=proximal, **settings)


def diloco(
    workers,
    *,
    outer_learning_rate=0.7,
    outer_momentum=0.9,
    outer_optimizer=None,
    **settings,
):
    """Nesterov's outer step; inner optimizer states are kept.

    `outer_optimizer` is ("sgd" | "heavy ball", numbers).
    """
    step = nesterov(outer_learning_rate, outer_momentum)
    if outer_optimizer is not None:
        kind, *numbers = outer_optimizer
        step = {"sgd": sgd, "heavy ball": heavy_ball}[kind](*numbers)
    return outer(workers, step, **settings)


def slow_mo(workers, *, slow_momentum=0.5, outer_learning_rate=1.0, **settings):
    """SlowMo."""
    step = slow(outer_learning_rate, slow_momentum)
    return outer(workers, step, **settings)


def fed_opt(
    workers,
    *,
    server,
    server_learning_rate=0.1,
    beta1=0.9,
    beta2=0.99,
    tau=1e-3,
    **settings,
):
    """FedAvgM (beta1 is b), FedAdagrad, FedAdam, FedYogi."""
    if server == "avgm":
        return outer(workers, heavy_ball(server_learning_rate, beta1), **settings)
    step = adaptive(server, server_learning_rate, beta1, beta2, tau)
    return outer(workers, step, **settings)


def scaffold(
    workers,
    *,
    learning_rate,
    local_steps=2,
    server_learning_rate=1.0,
    members=None,
):
    """SCAFFOLD, option II; up and down twice the model.

    y <- y - eta (grad - c_i + c);  c_i' = c_i - c + (x - y) / (H_i eta)
    x <- x + g mean(y - x);  c <- c + sum(c_i' - c_i) / N
    `members` are those of each round, by default all; then time does not count.
    """
    n = len(workers)
    server, learner = Server(workers), LocalSGD(workers)
    c, own = np.zeros_like(workers.start), [np.zeros_like(workers.start)] * n
    if members is None:
        turns = rounds(workers, local_steps, learning_rate)
    else:
        turns = (
            ({i: workers.draw(i, local_steps) for i in m}, learning_rate)
            for m in members
        )
    for draws, eta in turns:
        x, h = server.center, {i: len(draws[i]) for i in draws}
        y = {i: learner(i, draws[i], x, eta, shift=c - own[i]) for i in draws}
        new = {i: own[i] - c + (x - y[i]) / (h[i] * eta) for i in draws}
        for i in draws:
            server.hear(i, 2 * server.dense)
        server.change(x + server_learning_rate * np.mean([y[i] - x for i in draws], 0))
        server.merges += 1
        c = c + sum(new[i] - own[i] for i in draws) / n
        for i in draws:
            own[i] = new[i]
            server.give(i, num_bytes=2 * server.dense)
    server.more = {"c": c, "c_i": own}
    return server
