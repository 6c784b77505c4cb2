"""The baselines, SMA, EASGD and Adaptive SGD again, in NumPy float64.

The loops follow docs/algorithms; `oracle_world` says what is taken as given. The other
strategies are in `async_oracle`, `tree_oracle` and `federated_oracle`.
"""

from collections import Counter

import numpy as np
from oracle_world import bulk_synchronous


def sequential_sgd(world, *, batch_size, learning_rate, momentum=0.0, weight_decay=0.0):
    """v <- mu v + g + wd w;   w <- w - eta v, on the fastest worker."""
    cost = [
        worker.fixed + batch_size * worker.per_example for worker in world.clock.workers
    ]
    fastest = cost.index(min(cost))
    w, v = world.start, 0.0

    def compute(batches, eta):
        nonlocal w, v
        for rows in batches[fastest]:
            v = momentum * v + world.gradient(w, rows) + weight_decay * w
            w = w - eta * v
        return w

    bulk_synchronous(
        world, (fastest,), 1, batch_size, compute, learning_rate=learning_rate
    )


def sync_sgd(
    world,
    *,
    batch_size,
    learning_rate,
    server_momentum=0.0,
    ema=False,
    weight_decay=0.0,
):
    """g is the mean over all examples of the round; one step with server_momentum.

    z <- mu z + g, or F.1's z <- beta z + (1 - beta) g.
    """
    w, z = world.start, 0.0

    def compute(batches, eta):
        nonlocal w, z
        rows = np.concatenate(
            [rows for local_steps in batches.values() for rows in local_steps]
        )
        share = 1 - server_momentum if ema else 1.0
        z = server_momentum * z + share * (world.gradient(w, rows) + weight_decay * w)
        w = w - eta * z
        return w

    bulk_synchronous(
        world, tuple(world.workers), 1, batch_size, compute, learning_rate=learning_rate
    )


def elastic_sgd(world, *, batch_size, learning_rate, local_steps, merge_momentum=0.9):
    """docs/algorithms B."""
    w = w_p = world.start

    def compute(batches, eta):
        nonlocal w, w_p
        replicas = []
        for local_steps in batches.values():
            w_i = w
            for rows in local_steps:
                w_i = w_i - eta * world.gradient(w_i, rows)
            replicas.append(w_i)
        w, w_p = np.mean(replicas, 0) + merge_momentum * (w - w_p), w
        return w

    members = tuple(world.workers)
    bulk_synchronous(
        world, members, local_steps, batch_size, compute, learning_rate=learning_rate
    )


def sma(
    world,
    *,
    batch_size,
    learning_rate,
    merge_momentum=0.9,
    alpha=None,
    local_steps=1,
    momentum=0.0,
    weight_decay=0.0,
    blocking=False,
    restart="on_lr_drop",
    reset_momentum=True,
    center="own",
):
    """docs/algorithms C.1: c_j from w_j before its last step, and z of the last round.

    C.2: if the learning rate fell since the last merge, w_j <- z afterwards, and with
    `reset_momentum` z_prev <- z and v_j <- 0. Returns the number of restarts. With
    `center="mean"`, KungFu's (1 - alpha) w_j + alpha mean_k w_k, from before the step.
    """
    k = len(world.workers)
    default = 0.1 if center == "mean" else 1 / k
    alpha = default if alpha is None else alpha
    z = z_prev = world.start
    w, v = [world.start] * k, [0.0] * k
    taken, looked = Counter(), 0

    def fell():
        """Did the rate fall by a quarter or more from one arrival to the next?"""
        nonlocal looked
        ends = range(looked, len(world.finished) + 1)
        looked = len(world.finished)
        learning_rates = [
            world.eta(learning_rate, local_rounds) for local_rounds in ends
        ]
        return any(
            b < 0.75 * a
            for a, b in zip(learning_rates, learning_rates[1:], strict=False)
        )

    def compute(batches, eta):
        nonlocal z, z_prev, w, v
        olds = []
        for j, local_steps in batches.items():
            for rows in local_steps:
                before = w[j]
                g = world.gradient(before, rows) + weight_decay * before
                v[j] = momentum * v[j] - eta * g
                w[j] = before + v[j]
            olds.append(before)
        pulled_to = np.mean(olds, 0) if center == "mean" else z
        corrections = [alpha * (old - pulled_to) for old in olds]
        w = [w_j - c_j for w_j, c_j in zip(w, corrections, strict=True)]
        if center == "mean":
            z = np.mean(w, 0)
            return z
        z, z_prev = z + sum(corrections) + merge_momentum * (z - z_prev), z
        if restart == "on_lr_drop" and fell():
            taken["restarts"] += 1
            w = [z] * k
            if reset_momentum:
                z_prev, v = z, [0.0] * k
        return z

    settings = {"learning_rate": learning_rate, "blocking": blocking}
    bulk_synchronous(
        world, tuple(world.workers), local_steps, batch_size, compute, **settings
    )
    return taken


def easgd_sync(
    world,
    *,
    batch_size,
    learning_rate,
    beta=0.9,
    alpha=None,
    local_steps=1,
    momentum=0.0,
    weight_decay=0.0,
    correction="before",
    blocking=False,
):
    """docs/algorithms G.1: x~ <- (1 - p alpha) x~ + p alpha mean(x), x before the step.

    `correction="after"`: as in torch-distlearn, the step comes first.
    """
    p = len(world.workers)
    alpha = beta / p if alpha is None else alpha
    center = world.start
    x, v = [center] * p, [0.0] * p

    def compute(batches, eta):
        nonlocal center
        heard = []
        for i, local_steps in batches.items():
            for rows in local_steps:
                old = x[i]
                g = world.gradient(old, rows) + weight_decay * old
                v[i] = momentum * v[i] - eta * g
                x[i] = old + v[i]
            heard.append(old if correction == "before" else x[i])
            x[i] = x[i] - alpha * (heard[-1] - center)
        center = (1 - p * alpha) * center + p * alpha * np.mean(heard, 0)
        return center

    settings = {"learning_rate": learning_rate, "blocking": blocking}
    bulk_synchronous(
        world, tuple(world.workers), local_steps, batch_size, compute, **settings
    )


def adaptive_sgd(
    world,
    *,
    batch_size,
    learning_rate,
    min_batch_size,
    beta,
    mega_batch,
    delta=0.1,
    perturbation_threshold=0.1,
    merge_momentum=0.9,
    scaling="paper",
    bound="skip",
    scale_every=1,
):
    """docs/algorithms A.1 to A.3. Returns how often each branch was taken."""
    n = len(world.workers)
    w = w_p = world.start
    b = [float(batch_size)] * n
    taken, merges = Counter(), 0
    while True:
        replicas, u = _one_mega_batch(
            world, w, b, batch_size, learning_rate, mega_batch
        )
        if replicas is None:
            return taken
        total = sum(u)
        alpha = [x / total for x in u]
        if len(set(u)) == 1:
            taken["equal_updates_of_unlike_batches"] += len(set(b)) > 1
            alpha = [x / sum(b) for x in b]
        small = [
            np.linalg.norm(w_i) / len(w_i) < perturbation_threshold for w_i in replicas
        ]
        present = [i for i in range(n) if u[i]]
        if all(small[i] for i in present):
            taken["condition_met"] += 1
            r = u.index(max(u))
            s = min(present, key=lambda i: u[i])
            if u[r] != u[s]:
                taken["weights_changed"] += 1
                alpha[r] *= 1 + delta
                alpha[s] *= 1 - delta
        merged = sum(a * w_i for a, w_i in zip(alpha, replicas, strict=True))
        w, w_p = merged + merge_momentum * (w - w_p), w
        world.merge(tuple(world.workers), w)
        merges += 1
        if scaling == "paper" and merges % scale_every == 0:
            mean = total / n
            pairs = zip(b, u, strict=True)
            b = [
                _scaled(*pair, mean, min_batch_size, batch_size, beta, bound)
                for pair in pairs
            ]


def _one_mega_batch(world, w, b, batch_size, learning_rate, mega_batch):
    """The replicas and numbers of updates of all workers; (None, None) at the end."""
    replicas, u, dispatched = [w] * len(b), [0] * len(b), 0
    in_flight, idle = {}, list(world.workers)
    while True:
        for i in idle:
            if dispatched < mega_batch:
                (rows,) = world.dispatch(i, 1, b[i])
                in_flight[i] = rows, world.eta(learning_rate) * b[i] / batch_size
                u[i] += 1
                dispatched += len(rows)
        if not in_flight:
            return replicas, u
        i = world.wait()
        if i is None:
            return None, None
        rows, lr = in_flight.pop(i)
        replicas[i] = replicas[i] - lr * world.gradient(replicas[i], rows)
        idle = [i]


def _scaled(b, u, mean, min_batch_size, batch_size, beta, bound):
    new = b + beta * (u - mean)
    if bound == "clip":
        return min(batch_size, max(min_batch_size, new))
    if (u > mean and new <= batch_size) or (u < mean and new >= min_batch_size):
        return new
    return b
