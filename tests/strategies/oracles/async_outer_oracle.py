"""Asynchronous servers that merge models, in NumPy float64: parts L.2 to L.5.

A report of worker i is D_i = s_i - w_i, with s_i the model that i was given.
"""

import numpy as np
from outer_oracle import nesterov, sgd
from vector_world import LocalSGD, Server


def each_report(workers, arrive, *, learning_rate, local_steps=2, **local):
    """On each report: arrive(server, i, D_i, staleness) changes c and gives a model."""
    k = len(workers)
    steps = [local_steps] * k if isinstance(local_steps, int) else local_steps
    server, learner = Server(workers), LocalSGD(workers, **local)
    eta = {}

    def begin(i):
        eta[i] = workers.eta(learning_rate)
        workers.begin(i, steps[i])

    for i in range(k):
        begin(i)
    while report := workers.wait():
        i, draws = report
        w = learner(i, draws, server.given[i], eta[i])
        staleness = server.hear(i)
        server.merges += 1
        arrive(server, i, server.given[i] - w, staleness)
        begin(i)
    return server


def decay_of(staleness):
    """The factor on D_i of a report that is tau versions old."""
    return {"none": lambda tau: 1.0, "sqrt": lambda tau: (1 + tau) ** -0.5}[staleness]


def async_diloco(
    workers,
    *,
    learning_rate,
    local_steps=2,
    outer_learning_rate=0.7,
    outer_momentum=0.9,
    outer_optimizer=None,
    scale=None,
    staleness="none",
    grace=None,
    **local,
):
    """The outer step on z D_i, z = 1 / sqrt(k) or `scale`, by staleness if asked.

    With `grace` the first report opens a window; reports up to its end join it, each
    with a step of its own; all go on at its end, or at once when all are in it.
    """
    k = len(workers)
    z = k**-0.5 if scale is None else scale
    decay = decay_of(staleness)
    step = nesterov(outer_learning_rate, outer_momentum)
    if outer_optimizer is not None:
        step = sgd(outer_optimizer[1])

    def arrive(server, i, d, tau):
        server.change(server.center - step(z * decay(tau) * d, None))
        if grace is None:
            server.give(i)

    if grace is None:
        settings = {"learning_rate": learning_rate, "local_steps": local_steps}
        return each_report(workers, arrive, **settings, **local)
    server, learner = Server(workers), LocalSGD(workers, **local)
    closes, inside = np.inf, []
    for i in range(k):
        workers.begin(i, local_steps)
    while True:
        report = workers.wait(closes)
        if report is None and workers.now >= workers.end:
            return server
        if report is not None:
            i, draws = report
            if not inside:
                closes = workers.now + grace
            inside.append(i)
            w = learner(i, draws, server.given[i], workers.eta(learning_rate))
            tau = server.hear(i)
            server.merges += 1
            arrive(server, i, server.given[i] - w, tau)
        if report is None or len(inside) == k:
            for i in sorted(inside):
                server.give(i)
                workers.begin(i, local_steps)
            closes, inside = np.inf, []


def steps_by_speed(seconds, steps):
    """DyLU: H_i = floor(H speed_i / fastest speed), at least 1."""
    return [max(1, int(steps * min(seconds) / s + 1e-9)) for s in seconds]


def delayed_nesterov(
    workers,
    *,
    every=None,
    spread=0.0,
    outer_learning_rate=0.7,
    outer_momentum=0.9,
    local_steps=2,
    **settings,
):
    """B += D_i; the momentum moves at every N-th report, with a share q in between.

    `local_steps="measured:H"` is DyLU.
    """
    n = every or len(workers)
    g, b, q = outer_learning_rate, outer_momentum, spread
    m = held = np.zeros_like(workers.start)
    count = 0

    def arrive(server, i, d, tau):
        nonlocal m, held, count
        held = held + d
        count += 1
        if count % n:
            step = q * b * m + d / n
        else:
            m, held = b * m + held / n, np.zeros_like(held)
            step = (1 - q * n + q) * b * m + d / n
        server.change(server.center - g * step)
        server.give(i)

    if isinstance(local_steps, str):
        most = int(local_steps.split(":")[1])
        local_steps = steps_by_speed(workers.seconds, most)
    return each_report(workers, arrive, local_steps=local_steps, **settings)


def mla(
    workers,
    *,
    send="center",
    scale=1.0,
    outer_learning_rate=0.7,
    outer_momentum=0.9,
    correct=lambda d, m: d,
    **settings,
):
    """G = r D_i; m <- u m + (1 - u) G; c <- c - g (G + u m).

    `send="lookahead"` gives c - g u m. `correct` is HeLoCo's, on D_i.
    """
    g, u = outer_learning_rate, outer_momentum
    m = np.zeros_like(workers.start)

    def arrive(server, i, d, tau):
        nonlocal m
        change = scale * correct(d, m)
        m = u * m + (1 - u) * change
        server.change(server.center - g * (change + u * m))
        server.give(i, server.center - g * u * m if send == "lookahead" else None)

    return each_report(workers, arrive, **settings)


def aligned(d, m, *, ok=0.2, most=0.5, e=1e-8):
    """HeLoCo's correction of one tensor of D by the momentum m."""
    size, other = np.linalg.norm(d), np.linalg.norm(m)
    if size < e or other < e:
        return d
    q = float(np.sum(d * m)) / (size * other)
    if q >= ok:
        return d
    f = size / (size + 3 * other + e)
    if q < 0:
        z = min(0.5 * -q * f, most)
        return d - z * q * size * m / other
    share = min((1 - q) * f, 1.0)
    y = (1 - share) * d / size + share * m / other
    return size * y / np.linalg.norm(y)


def heloco(workers, *, tensors=None, scale=None, **settings):
    """MLA's server on corrected tensors; workers are given the look-ahead.

    `tensors` are slices of the flat model, by default one.
    """
    tensors = tensors or [slice(None)]
    scale = len(workers) ** -0.5 if scale is None else scale

    def correct(d, m):
        new = np.empty_like(d)
        for where in tensors:
            new[where] = aligned(d[where], m[where])
        return new

    return mla(workers, send="lookahead", scale=scale, correct=correct, **settings)


def fed_async(
    workers, *, mixing=0.6, staleness="polynomial", a=None, h=4.0, **settings
):
    """c <- (1 - A s) c + A s w_i, s by staleness; `proximal` is the local term.

    polynomial: (1 + tau)^-a, a .5; hinge: 1 up to h, then 1 / (a (tau - h) + 1), a 10.
    """
    if a is None:
        a = {"polynomial": 0.5, "hinge": 10.0, "constant": 0.0}[staleness]
    s = {
        "constant": lambda tau: 1.0,
        "polynomial": lambda tau: (1 + tau) ** -a,
        "hinge": lambda tau: 1.0 if tau <= h else 1 / (a * (tau - h) + 1),
    }[staleness]

    def arrive(server, i, d, tau):
        w = server.given[i] - d
        share = mixing * s(tau)
        server.change((1 - share) * server.center + share * w)
        server.give(i)

    return each_report(workers, arrive, **settings)


def fed_buff(
    workers,
    *,
    buffer_size=10,
    server_learning_rate=1.0,
    server_momentum=0.0,
    staleness="sqrt",
    **settings,
):
    """sum += s D_i; at the K-th report: v <- b v + sum / K; c <- c - g v."""
    decay, count = decay_of(staleness), 0
    total = v = np.zeros_like(workers.start)

    def arrive(server, i, d, tau):
        nonlocal total, v, count
        total = total + decay(tau) * d
        count += 1
        if count % buffer_size == 0:
            v = server_momentum * v + total / buffer_size
            total = np.zeros_like(total)
            server.change(server.center - server_learning_rate * v)
        server.give(i)

    return each_report(workers, arrive, **settings)
