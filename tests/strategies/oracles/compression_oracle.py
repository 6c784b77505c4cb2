"""Compressed merges in NumPy float64, with the bytes that they send: part L.11."""

import math

import ml_dtypes
import numpy as np
from outer_oracle import nesterov, sgd
from vector_world import LocalSGD, Server, rounds

VALUE_BITS = {None: 32, "bf16": 16, "int8": 8, "int4": 4, "e3m0": 4, "stat2": 2}
SCALES = {"int8": 4, "int4": 4, "e3m0": 4, "stat2": 4 + 4 * 4}  # bytes, by tensor


def kept(x, top_k, chunk):
    """Where x is kept: the `top_k` largest magnitudes of each chunk, lower index first.

    Without `top_k`, everywhere.
    """
    keep = np.zeros(len(x), bool)
    if top_k is None:
        return ~keep
    for start in range(0, len(x), chunk):
        piece = np.abs(x[start : start + chunk])
        keep[start + np.argsort(-piece, kind="stable")[:top_k]] = True
    return keep


def rounded(x, exchange):
    """What is decoded of the kept numbers x of one tensor."""
    x = np.asarray(x, np.float64)
    if exchange is None:
        return x
    if exchange == "bf16":
        return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    if exchange in ("int8", "int4"):
        largest = np.abs(x).max()
        scale = largest / (127 if exchange == "int8" else 7) if largest else 1.0
        return np.round(x / scale) * scale  # half to even
    if exchange == "e3m0":
        return _e3m0(x)
    assert exchange == "stat2"
    bins = 4
    s = 6 * np.std(x, ddof=1) / bins if len(x) > 1 else 0.0
    if s == 0:
        return np.full_like(x, x.mean())
    classes = np.clip(np.round((x - x.mean()) / s + bins / 2), 0, bins - 1)
    values = np.empty_like(x)
    for c in set(classes):
        values[classes == c] = x[classes == c].mean()
    return values


def _e3m0(x):
    """sign 2^(L - 7) max|x|, L 1 to 7, nearest in the logarithm; 0 if very small."""
    largest = np.abs(x).max()
    if largest == 0:
        return x
    share = np.abs(x) / largest
    level = np.round(np.log2(np.maximum(share, 2.0**-6.5))).clip(-6, 0)
    return np.sign(x) * np.where(share < 2**-6.5, 0.0, 2.0**level) * largest


def num_bytes(n, exchange, chunk=4096, *, everything=False):
    """Bytes of n kept numbers of one tensor; indices, unless `everything` is kept."""
    sparse = not everything
    index = math.ceil(math.log2(chunk)) if sparse else 0
    bits = n * (index + VALUE_BITS[exchange])
    return math.ceil(bits / 8) + SCALES.get(exchange, 0)


def compressed(x, tensors, *, top_k=None, chunk=4096, exchange=None):
    """(what arrives of x, where it is kept, bytes), tensor by tensor."""
    value, keep, size = np.zeros_like(x), np.zeros(len(x), bool), 0
    for where in tensors:
        own = kept(x[where], top_k, chunk)
        arrived = np.zeros(len(own))
        arrived[own] = rounded(x[where][own], exchange)
        value[where], keep[where] = arrived, own
        size += num_bytes(int(own.sum()), exchange, chunk, everything=own.all())
    return value, keep, size


def compressed_rounds(
    workers,
    step,
    *,
    learning_rate,
    local_steps=2,
    tensors=None,
    feedback=None,
    average="workers",
    down="model",
    top_k=None,
    chunk=4096,
    exchange=None,
    **local,
):
    """e_i <- B e_i + D_i; s_i = Q(top(e_i)); e_i <- e_i - s_i; c <- c - step(mean s_i).

    `feedback` is B; None: e_i = D_i, and nothing is kept for later. "senders": each
    coordinate is divided by the number of workers that sent it. down="messages": each
    gets all others' messages.
    """
    tensors = tensors or [slice(None)]
    server, learner = Server(workers), LocalSGD(workers, **local)
    e = [np.zeros_like(workers.start)] * len(workers)
    settings = {"top_k": top_k, "chunk": chunk, "exchange": exchange}
    for draws, eta in rounds(workers, local_steps, learning_rate):
        sent, where, sizes = [], [], {}
        for i in draws:
            d = server.center - learner(i, draws[i], server.center, eta)
            whole = d if feedback is None else feedback * e[i] + d
            s, keep, sizes[i] = compressed(whole, tensors, **settings)
            e[i] = np.zeros_like(d) if feedback is None else whole - s
            server.hear(i, sizes[i])
            sent.append(s)
            where.append(keep)
        senders = np.maximum(np.sum(where, 0), 1)
        total = np.sum(sent, 0)
        d = total / (senders if average == "senders" else len(draws))
        server.change(server.center - step(d, eta))
        server.merges += 1
        for i in draws:
            others = sum(sizes[j] for j in draws if j != i)
            server.give(i, num_bytes=others if down == "messages" else None)
    server.more = {"residual": e}
    return server


def sparse_loco(
    workers,
    *,
    top_k,
    chunk=4096,
    feedback=0.95,
    bits=None,
    outer_learning_rate=1.0,
    **settings,
):
    """SparseLoCo: error feedback, no outer momentum; bits=2 is "stat2"."""
    exchange = {None: None, 2: "stat2", 4: "int4", 8: "int8", 16: "bf16"}[bits]
    return compressed_rounds(
        workers,
        sgd(outer_learning_rate),
        top_k=top_k,
        chunk=chunk,
        feedback=feedback,
        exchange=exchange,
        **settings,
    )


def compressed_diloco(
    workers,
    *,
    outer_learning_rate=0.7,
    outer_momentum=0.9,
    feedback=0.95,
    **settings,
):
    """DiLoCo on compressed pseudo-gradients, with feedback unless it is None."""
    step = nesterov(outer_learning_rate, outer_momentum)
    return compressed_rounds(workers, step, feedback=feedback, **settings)
