"""Outer steps on fragments of the model, in NumPy float64: parts L.9 and L.10.

A fragment is an array of indices into the flat model.
"""

import numpy as np
from compression_oracle import compressed
from outer_oracle import nesterov
from vector_world import BYTES, LocalSGD, Server


def packed(sizes, fragments):
    """The tensors of each fragment: largest first, into the smallest fragment so far.

    Ties go to the tensor and to the fragment of the lower index.
    """
    bins = [[] for _ in range(fragments)]
    for j in sorted(range(len(sizes)), key=lambda j: -sizes[j]):
        min(bins, key=lambda own: sum(sizes[t] for t in own)).append(j)
    return [sorted(own) for own in bins]


def whole(workers):
    """One fragment."""
    return [np.arange(len(workers.start))]


def streaming_diloco(
    workers,
    *,
    learning_rate,
    local_steps=2,
    fragments=None,
    tensors=None,
    delay=0,
    blend=0.0,
    exchange=None,
    outer_learning_rate=0.7,
    outer_momentum=0.9,
    **local,
):
    """After step t, if d divides t: an outer step of fragment (t / d - 1) mod P.

    `delay` steps later the workers take it: w_p <- a w_p + (1 - a) c_p, a = `blend`.
    d = max(1, round(H / P)). `tensors` are arrays of indices, each in one fragment and
    quantized by itself.
    """
    pieces = fragments or whole(workers)
    tensors = tensors or pieces
    d = max(1, round(local_steps / len(pieces)))
    server, learner = Server(workers), LocalSGD(workers, **local)
    outer = [nesterov(outer_learning_rate, outer_momentum) for _ in pieces]
    w = [workers.start] * len(workers)
    due, t = {}, 0
    while True:
        eta = workers.eta(learning_rate)
        for i in range(len(w)):
            workers.begin(i)
        arrived = [workers.wait() for _ in w]
        if None in arrived:
            server.more = {"workers": w}
            return server
        for i, draws in arrived:
            w[i] = learner(i, draws, w[i], eta)
            server.given[i] = w[i]
        t += 1
        if t % d == 0:
            p = (t // d - 1) % len(pieces)
            where, center = pieces[p], server.center.copy()
            own = [t for t in tensors if set(t) <= set(where)]
            sent = [compressed(center - x, own, exchange=exchange) for x in w]
            for i, (_, _, size) in enumerate(sent):
                server.hear(i, size)
            d_p = np.mean([value[where] for value, *_ in sent], 0)
            center[where] -= outer[p](d_p, eta)
            server.change(center)
            server.merges += 1
            due[t + delay] = where, center[where]
        if t in due:
            where, taken = due.pop(t)
            for i in range(len(w)):
                w[i] = w[i].copy()
                w[i][where] = blend * w[i][where] + (1 - blend) * taken
                server.give(i, w[i], BYTES * len(where))


def radial_direction(deltas, weights):
    """RDA of one tensor: (sum q |D|) y / |y|, y = sum q D / |D|; the mean if y = 0."""
    sizes = [np.linalg.norm(d) for d in deltas]
    y = sum(
        q * (d / s if s else 0 * d)
        for q, d, s in zip(weights, deltas, sizes, strict=True)
    )
    if not np.linalg.norm(y):
        return sum(q * d for q, d in zip(weights, deltas, strict=True))
    size = sum(q * s for q, s in zip(weights, sizes, strict=True))
    return size * y / np.linalg.norm(y)


def closing(answers, quorum, grace):
    """Who is merged and when: `grace` after the quorum, or when all have answered.

    `answers` are seconds by learner; None: no answer.
    """
    times = sorted(t for t in answers if t is not None)
    end = times[quorum - 1] + grace
    if len(times) == len(answers):
        end = min(end, times[-1])
    members = [m for m, t in enumerate(answers) if t is not None and t <= end]
    return members, end


class Syncer:
    """c and the outer steps of its fragments; the learners' models and counters."""

    def __init__(
        self,
        workers,
        *,
        learning_rate,
        fragments=None,
        tensors=None,
        average="mean",
        tokens=1,
        outer_learning_rate=0.7,
        outer_momentum=0.9,
        **local,
    ):
        """`tokens` are those of a step, one number or one for each learner."""
        k = len(workers)
        self.workers, self.server = workers, Server(workers)
        self.learner, self.learning_rate = LocalSGD(workers, **local), learning_rate
        self.pieces = fragments or whole(workers)
        self.tensors = tensors or self.pieces
        self.average = average
        self.tokens = [tokens] * k if np.ndim(tokens) == 0 else tokens
        self.outer = [
            nesterov(outer_learning_rate, outer_momentum) for _ in self.pieces
        ]
        self.w = [workers.start] * k
        self.steps = [[0] * len(self.pieces) for _ in range(k)]  # since it received p
        self.answers, self.weights = {}, []

    def work(self, m, draws, eta=None):
        """A round of a learner."""
        eta = self.learning_rate if eta is None else eta
        self.w[m] = self.learner(m, draws, self.w[m], eta)
        self.steps[m] = [n + len(draws) for n in self.steps[m]]

    def answer(self, m, p):
        """Learner m's part in the merge of p; none without steps since it got p."""
        n = self.steps[m][p]
        if not n:
            return False
        where = self.pieces[p]
        self.answers[m] = (
            (self.tokens[m] * n) ** 2 / n,
            self.server.center - self.w[m],
        )
        self.server.hear(m, BYTES * len(where))
        return True

    def merge(self, p):
        """Merge the answers into c_p, by T^2 / n."""
        q = np.array([weight for weight, _ in self.answers.values()])
        q = q / q.sum()
        deltas = [d for _, d in self.answers.values()]
        mean = sum(share * d for share, d in zip(q, deltas, strict=True))
        if self.average == "rda":
            mean = mean.copy()
            for where in self.tensors:
                mean[where] = radial_direction([d[where] for d in deltas], q)
        where, center = self.pieces[p], self.server.center.copy()
        center[where] -= self.outer[p](mean[where], None)
        self.server.change(center)
        self.server.merges += 1
        self.weights.append(q)
        self.answers = {}

    def take(self, m, p):
        """Learner m takes c_p; its counters of p start again."""
        where = self.pieces[p]
        self.w[m] = self.w[m].copy()
        self.w[m][where] = self.server.center[where]
        self.steps[m][p] = 0
        self.server.give(m, self.w[m], BYTES * len(where))


def decoupled_diloco(
    workers, *, learning_rate, local_steps=2, quorum=1, grace=0.0, **settings
):
    """Learners never wait; a request for the next fragment is open at all times.

    A report of m: it answers the open request (once), then takes all fragments that
    were merged since, also just now. The request closes `grace` seconds after `quorum`
    answers (also after none, a report at the same time counts), or when all have
    answered. What m computed from its answer until it takes a fragment is lost. The
    exact times are a reading of the text, which leaves them open.
    """
    syncer = Syncer(workers, learning_rate=learning_rate, **settings)
    k, fragments = len(workers), len(syncer.pieces)
    steps = max(1, local_steps // fragments)
    merged = [[False] * fragments for _ in range(k)]  # since m took it
    eta, p, closes = {}, 0, np.inf

    def close():
        nonlocal p, closes
        syncer.merge(p)
        for own in merged:
            own[p] = True
        p, closes = (p + 1) % fragments, np.inf

    def begin(m):
        eta[m] = workers.eta(learning_rate)
        syncer.server.given[m] = syncer.w[m]
        workers.begin(m, steps)

    for m in range(k):
        begin(m)
    while True:
        report = workers.wait(closes)
        if report is None:
            if workers.now >= workers.end:
                syncer.server.more = {"workers": syncer.w}
                return syncer.server
            close()
            continue
        m, draws = report
        syncer.work(m, draws, eta[m])
        if m not in syncer.answers:
            syncer.answer(m, p)
        if len(syncer.answers) >= quorum and closes == np.inf:
            closes = workers.now + grace
        if len(syncer.answers) == k:
            close()
        for j in range(fragments):
            if merged[m][j]:
                syncer.take(m, j)
                merged[m][j] = False
        begin(m)
