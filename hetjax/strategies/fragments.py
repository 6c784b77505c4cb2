"""DiLoCo with less traffic: fragments of the model, and compressed reports."""

from typing import Literal

import optax

from hetjax import merge, schedule
from hetjax.arguments import Count, Fraction, NotNegative, Share, Whole
from hetjax.merge import Pattern, outer_optimizers
from hetjax.optimizers import Optimizer
from hetjax.schedule import GracePeriod, LearningRateLike
from hetjax.strategies.local_steps import Steps, in_rounds
from hetjax.strategies.step_rules import learner
from hetjax.strategies.types import Strategy, factory


@factory
def streaming_diloco(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Count = 32,
    fragments: Count = 2,
    delay: Whole = 1,
    blend: Share = 0.5,
    exchange: Literal["float32", "bf16", "int8", "int4"] = "float32",
    pattern: Pattern = "strided",
    outer_learning_rate: NotNegative = 0.7,
    outer_momentum: Fraction = 0.9,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """DiLoCo whose fragments are merged in turn, while workers go on computing.

        d = max(1, round(H / P));   at step t, if d divides t: p = (t / d - 1) mod P
        c_p makes an outer step on mean_i (c_p - w_i,p)
        V steps later   w_i,p <- a w_i,p + (1 - a) c_p

    H is `local_steps`, P `fragments`, V `delay` [steps], a `blend`. The fragments are
    the layers by `pattern` (`merge.divided`). `exchange` is the format of what workers
    send; integers have one scale for each tensor. (The paper's 4-bit floating format is
    not published in full.) With one fragment, no delay and no blend this is `diloco`.
    Source: Douillard et al. 2025; docs/algorithms L.10.
    """
    tx = outer_optimizers.nesterov(outer_learning_rate, outer_momentum)
    inner = merge.outer(tx)
    bits = {"bf16": "bf16", "int8": 8, "int4": 4}.get(exchange)
    if bits is not None:
        inner = merge.compressed(inner, bits=bits, error_feedback=None)
    merging = merge.in_parts(inner, merge.divided(fragments, pattern), blend=blend)
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = schedule.streaming(
        batch_size=batch_size,
        local_steps=local_steps,
        fragments=fragments,
        delay=delay,
    )
    return Strategy(policy, update, merging, batch_size, rate)


@factory
def decoupled_diloco(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Count = 32,
    fragments: Count = 2,
    quorum: Count = 1,
    grace: NotNegative | GracePeriod = 0.0,
    average: Literal["mean", "rda"] = "rda",
    blend: Share = 0.0,
    outer_learning_rate: NotNegative = 0.7,
    outer_momentum: Fraction = 0.9,
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """DiLoCo whose learners never wait: a syncer merges what has come in time.

        D_m = c_p - w_m,p;   D = their mean with weights T_m^2 / n_m, or RDA
        c_p makes an outer step on D

    n_m steps on T_m examples were made since learner m last received fragment p. The
    syncer asks for one of the P `fragments` after another; it merges `grace` seconds
    after a `quorum` of learners has answered. RDA averages lengths and directions of
    tensors separately (`merge.buffered`). Fragments are balanced by size, and a learner
    that takes one keeps `blend` of its own. When learners take fragments is our
    reading: at the end of each round of H / P steps. Source: Decoupled DiLoCo
    (arXiv:2604.21428); docs/algorithms L.9.
    """
    tx = outer_optimizers.nesterov(outer_learning_rate, outer_momentum)
    inner = merge.buffered(tx, weights="weight", since="center", average=average)
    division = merge.divided(fragments, "balanced")
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = schedule.syncer(
        batch_size=batch_size,
        local_steps=local_steps,
        fragments=fragments,
        quorum=quorum,
        grace=grace,
    )
    merging = merge.in_parts(inner, division, blend=blend)
    return Strategy(policy, update, merging, batch_size, rate)


@factory
def sparse_loco(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike | None = None,
    local_steps: Steps = 32,
    outer_learning_rate: NotNegative = 1.0,
    top_k: Count = 64,
    chunk: Count = 4096,
    error_feedback: Share = 0.95,
    bits: Literal[32, 16, 8, 4, 2] = 32,
    average: Literal["workers", "senders"] = "workers",
    momentum: Fraction = 0.0,
    weight_decay: NotNegative = 0.0,
    optimizer: Optimizer | None = None,
) -> Strategy:
    """Local SGD whose workers send the largest changes only, and remember the rest.

        e_i <- B e_i + (c - w_i);   s_i = Q(top(e_i));   e_i <- e_i - s_i
        c <- c - g mean_i s_i;   w_i <- c

    top keeps the `top_k` (at most `chunk`) entries of largest size in each `chunk` of a
    tensor, Q is the format of `bits` (32: none; 2 is experimental), B is
    `error_feedback`, g `outer_learning_rate`. With "senders", each entry is divided by
    the number of workers that sent it. If every entry is sent exactly and g is 1, this
    is `local_sgd(momentum=0.0)`. Source: Sarfi et al. 2025; docs/algorithms L.11.
    """
    formats = {32: None, 16: "bf16"}
    merging = merge.compressed(
        merge.outer(optax.sgd(outer_learning_rate)),
        top_k=min(top_k, chunk),
        chunk=chunk,
        bits=formats.get(bits, bits),
        error_feedback=error_feedback,
        average=average,
    )
    update, rate = learner(
        optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    policy = in_rounds(local_steps, batch_size)
    return Strategy(policy, update, merging, batch_size, rate)
