"""The five strategies again, in NumPy float64: loops written from ALGORITHMS.md.

Only two things are taken as given: how long things take (`SimulatedClock`) and the
order in which examples are handed out (`sampling.uniform`). Who gets how many of them
when, steps, merges, momentum and batch sizes are written here a second time.
"""

from collections import Counter

import numpy as np

from hetjax.machine import Arrival, MergeOrder, SimulatedClock, Work
from hetjax.sampling import uniform

BYTES = 4  # of a float32


class World:
    """A simulated machine, the order of examples, and the books of one run."""

    def __init__(self, problem, machine, *, seed, seconds):
        self.gradient, self.loss = problem.gradient, problem.loss
        self.clock = SimulatedClock(machine, seed=seed)
        self.end = seconds
        self.start = problem.initial(seed)
        n = len(problem.data.train)
        self._draw, self._rows = uniform().draw, uniform().init((), n, seed)
        self.finished = []  # (time, worker, updates, examples)
        self.models = [(0.0, self.start)]  # visible from that time on
        self.sizes = [[] for _ in machine.workers]  # (time, size) where it changed

    @property
    def workers(self):
        return range(len(self.clock.workers))

    @property
    def examples(self):
        """Examples of all work that was finished by now."""
        return sum(examples for *_, examples in self.finished)

    def dispatch(self, worker, steps, size):
        """Gives work; returns the rows of each step."""
        n = max(1, round(size))
        batches = []
        for _ in range(steps):
            self._rows, rows = self._draw(self._rows, worker, n)
            batches.append(rows)
        arrival = self.clock.dispatch(worker, Work(steps, size), (0,) * steps)
        if not self.sizes[worker] or self.sizes[worker][-1][1] != size:
            self.sizes[worker].append((arrival.start, size))
        return batches

    def wait(self):
        """The next worker that reports back; None at the end."""
        while (event := self.clock.next()) and event.time <= self.end:
            if isinstance(event, Arrival):
                work = event.work
                n = work.steps * max(1, round(work.batch_size))
                self.finished.append((event.time, event.worker, work.steps, n))
                return event.worker
        return None

    def merge(self, members, model, blocking=True):
        """`model` becomes visible when the members' merge is done."""
        num_bytes = BYTES * len(model)
        transfer = self.clock.merge(
            MergeOrder(members, blocking=blocking, trips=2 * (len(members) > 1)),
            num_bytes,
        )
        self.models.append((transfer.finish, model))

    def point(self, instant):
        """(updates, examples, loss) at an instant."""
        done = [f for f in self.finished if f[0] <= instant]
        model = [w for time, w in self.models if time <= instant][-1]
        updates, examples = (sum(f[i] for f in done) for i in (2, 3))
        return updates, examples, self.loss(model)

    def updates(self, worker):
        return sum(updates for _, k, updates, _ in self.finished if k == worker)


def bulk_synchronous(world, members, steps, size, compute, *, blocking=True):
    """Rounds; `compute({worker: [rows of each step]})` returns the merged model."""
    while True:
        batches = {k: world.dispatch(k, steps, size) for k in members}
        for _ in members:
            if world.wait() is None:
                return
        world.merge(members, compute(batches), blocking)


def sequential_sgd(world, *, batch_size, rate, momentum=0.0, weight_decay=0.0):
    """v <- mu v + g + wd w;   w <- w - eta v, on the fastest worker."""
    cost = [
        worker.fixed + batch_size * worker.per_example for worker in world.clock.workers
    ]
    fastest = cost.index(min(cost))
    w, v = world.start, 0.0

    def compute(batches):
        nonlocal w, v
        for rows in batches[fastest]:
            v = momentum * v + world.gradient(w, rows) + weight_decay * w
            w = w - rate * v
        return w

    bulk_synchronous(world, (fastest,), 1, batch_size, compute)


def sync_sgd(world, *, batch_size, rate, momentum=0.0):
    """g is the mean over all examples of the round; one step with momentum."""
    w, v = world.start, 0.0

    def compute(batches):
        nonlocal w, v
        rows = np.concatenate([rows for steps in batches.values() for rows in steps])
        v = momentum * v + world.gradient(w, rows)
        w = w - rate * v
        return w

    bulk_synchronous(world, tuple(world.workers), 1, batch_size, compute)


def elastic_sgd(world, *, batch_size, rate, steps, momentum=0.9):
    """ALGORITHMS B; `rate` may be a function of the examples finished at dispatch."""
    w = w_p = world.start
    schedule = rate if callable(rate) else lambda examples: rate
    eta = schedule(0)

    def compute(batches):
        nonlocal w, w_p, eta
        replicas = []
        for steps in batches.values():
            w_i = w
            for rows in steps:
                w_i = w_i - eta * world.gradient(w_i, rows)
            replicas.append(w_i)
        w, w_p = np.mean(replicas, 0) + momentum * (w - w_p), w
        eta = schedule(world.examples)
        return w

    bulk_synchronous(world, tuple(world.workers), steps, batch_size, compute)


def sma(
    world,
    *,
    batch_size,
    rate,
    momentum=0.9,
    alpha=None,
    tau=1,
    local_momentum=0.0,
    weight_decay=0.0,
    overlap=True,
):
    """ALGORITHMS C.1: c_j from w_j before its last step, and z of the last round."""
    k = len(world.workers)
    alpha = 1 / k if alpha is None else alpha
    z = z_prev = world.start
    w, v = [world.start] * k, [0.0] * k

    def compute(batches):
        nonlocal z, z_prev
        corrections = []
        for j, steps in batches.items():
            for rows in steps:
                before = w[j]
                g = world.gradient(before, rows) + weight_decay * before
                v[j] = local_momentum * v[j] + g
                w[j] = before - rate * v[j]
            corrections.append(alpha * (before - z))
            w[j] = w[j] - corrections[-1]
        z, z_prev = z + sum(corrections) + momentum * (z - z_prev), z
        return z

    members = tuple(world.workers)
    bulk_synchronous(world, members, tau, batch_size, compute, blocking=not overlap)


def adaptive_sgd(
    world,
    *,
    b_max,
    rate,
    b_min,
    beta,
    mega_batch,
    delta=0.1,
    pert_thr=0.1,
    momentum=0.9,
    scaling="paper",
    bound="skip",
    scale_every=1,
):
    """ALGORITHMS A.1 to A.3. Returns how often which branch was taken."""
    n = len(world.workers)
    w = w_p = world.start
    b = [float(b_max)] * n
    taken, merges = Counter(), 0
    while True:
        replicas, u = _one_mega_batch(world, w, b, b_max, rate, mega_batch)
        if replicas is None:
            return taken
        total = sum(u)
        alpha = [x / total for x in u]
        if len(set(u)) == 1:
            taken["equal_updates_of_unlike_batches"] += len(set(b)) > 1
            alpha = [x / sum(b) for x in b]
        small = [np.linalg.norm(w_i) / len(w_i) < pert_thr for w_i in replicas]
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
        w, w_p = merged + momentum * (w - w_p), w
        world.merge(tuple(world.workers), w)
        merges += 1
        if scaling == "paper" and merges % scale_every == 0:
            mean = total / n
            pairs = zip(b, u, strict=True)
            b = [_scaled(*pair, mean, b_min, b_max, beta, bound) for pair in pairs]


def _one_mega_batch(world, w, b, b_max, rate, mega_batch):
    """The replicas and numbers of updates of all workers; (None, None) at the end."""
    replicas, u, dispatched = [w] * len(b), [0] * len(b), 0
    in_flight, idle = {}, list(world.workers)
    while True:
        for i in idle:
            if dispatched < mega_batch:
                (rows,) = world.dispatch(i, 1, b[i])
                in_flight[i] = rows
                u[i] += 1
                dispatched += len(rows)
        if not in_flight:
            return replicas, u
        i = world.wait()
        if i is None:
            return None, None
        lr = rate * b[i] / b_max
        rows = in_flight.pop(i)
        replicas[i] = replicas[i] - lr * world.gradient(replicas[i], rows)
        idle = [i]


def _scaled(b, u, mean, b_min, b_max, beta, bound):
    new = b + beta * (u - mean)
    if bound == "clip":
        return min(b_max, max(b_min, new))
    if (u > mean and new <= b_max) or (u < mean and new >= b_min):
        return new
    return b
