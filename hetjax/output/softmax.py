"""Exact softmax cross-entropy over many labels, without an array [batch, labels].

The output layer z = h W^T + b, with W [C, H] and b [C], is evaluated in chunks of
labels. One pass accumulates, for each example, the running maximum of its scores, the
sum of exp(z - maximum), and that sum weighted with the rows of W. At the end these
yield the logsumexp of all scores and the mean row sum_c p_c W_c, from which the
gradient with respect to h follows. The gradients of W and b take a second pass, which
recomputes the scores: a `SoftmaxGrad` subtracts itself from W and b chunk by chunk, so
that plain SGD needs no gradient array either. It is a `sparse.DeferredGrad`, which the
functions of `hetjax.sparse` on gradients accept.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

from hetjax.sparse import DeferredGrad

CHUNK_SCORES = 2**22  # maximum number of scores of a chunk: 16 MB
_SMALLEST, _LARGEST = 512, 8192  # labels of a chunk
_GROUP = 128  # labels per group whose maximum is taken before the top-k search

Carry = Any  # the state passed from chunk to chunk


class Targets(NamedTuple):
    """The true labels of a batch, one entry per example and label.

    Entries with a row of B or more, or a column of C or more, are padding.
    """

    rows: jax.Array  # [L] int32: the example, sorted
    columns: jax.Array  # [L] int32: the label
    shares: jax.Array  # [L] float32: t, 1 / |labels| of the example

    def sum_per_example(self, values: jax.Array, num_rows: int) -> jax.Array:
        """Return [B] sums of values [L] over the entries of each example."""
        return jax.ops.segment_sum(
            values, self.rows, num_segments=num_rows, indices_are_sorted=True
        )


def targets_of(y: jax.Array | BCOO) -> Targets:
    """Return the targets of class ids [B], or of a batch's BCOO labels [B, C]."""
    if isinstance(y, BCOO):
        indices = jnp.asarray(y.indices)
        return Targets(indices[:, 0], indices[:, 1], jnp.asarray(y.data))
    rows = jnp.arange(y.shape[0], dtype=jnp.int32)
    return Targets(rows, jnp.asarray(y), jnp.ones(y.shape[0], jnp.float32))


def default_chunk(batch_size: int) -> int:
    """Return the labels per chunk: about `CHUNK_SCORES` scores, in whole groups."""
    labels = CHUNK_SCORES // max(1, batch_size) // _GROUP * _GROUP
    return max(_SMALLEST, min(_LARGEST, labels))


@flax.struct.dataclass
class SoftmaxGrad(DeferredGrad):
    """Gradient of sum_b scale_b loss_b with respect to W [C, H] and b [C].

    dW = sum_b (scale_b T_b p_bc - scale_b t_bc) h_b,   T_b = sum_c t_bc
    """

    h: jax.Array  # [B, H]
    kernel: jax.Array  # W at which the gradient is taken
    bias: jax.Array  # b at which it is taken
    normalizer: jax.Array  # [B] logsumexp of the scores
    scale: jax.Array  # [B] scale_b T_b
    targets: Targets  # with scale_b t_bc as shares
    chunk: int = flax.struct.field(pytree_node=False)

    def arrays(self) -> tuple[jax.Array, jax.Array]:
        """(dW [C, H], db [C])."""
        zeros = jnp.zeros_like(self.kernel), jnp.zeros_like(self.bias)
        return self._added(*zeros, 1.0)

    def subtracted(self, learning_rate: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(W - learning_rate dW, b - learning_rate db).

        Inside a jitted function to which W is donated, W is updated in place.
        """
        return self._added(None, None, -learning_rate)

    def _added(self, kernel: Any, bias: Any, factor: Any) -> tuple:
        """Return factor (dW, db) added to the arrays; None stands for W and b."""
        in_place = kernel is None
        carry = (self.kernel, self.bias) if in_place else (kernel, bias)

        def part(start: Any, size: int, carry: tuple) -> tuple:
            # in place, only later chunks must be unchanged
            weights = carry if in_place else (self.kernel, self.bias)
            w, b = (_slice(x, start, size) for x in weights)
            p = jnp.exp(scores(self.h, w, b) - self.normalizer[:, None])
            d = p * self.scale[:, None] * factor
            moves = product(d.T, self.h), d.sum(0)
            return tuple(
                _put(x, (_slice(x, start, size) + move).astype(x.dtype), start)
                for x, move in zip(carry, moves, strict=True)
            )

        kernel, bias = over_chunks(len(self.kernel), self.chunk, part, carry)
        rows, columns, shares = self.targets
        share = shares * factor
        h = self.h.at[rows].get(mode="fill", fill_value=0.0)
        moves = -(share[:, None] * h), -jnp.where(rows < len(self.h), share, 0.0)
        return tuple(
            x.at[columns].add(move.astype(x.dtype), mode="drop")
            for x, move in zip((kernel, bias), moves, strict=True)
        )


def scores(h: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Return z = h W^T + b [B, labels] in float32."""
    return product(h, kernel.T) + bias[None].astype(jnp.float32)


def loss_and_grads(
    h: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    targets: Targets,
    scale: jax.Array,
    chunk: int,
) -> tuple[jax.Array, jax.Array, SoftmaxGrad]:
    """Return (losses [B], dh [B, H], gradient of W and b) of sum_b scale_b loss_b.

    loss_b = -sum_c t_bc (z_bc - logsumexp(z_b))
    """
    losses, residuals = _forward(h, kernel, bias, targets, chunk)
    dh, grad = _grads(residuals, scale, chunk)
    # `subtracted` overwrites W; XLA avoids a copy only if it sees that every read of W
    # comes before. Adding zero shows this (a barrier is removed too early on CPUs)
    read = 0.0 * (losses + dh.sum(-1))
    return losses, dh, replace(grad, normalizer=grad.normalizer + read)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy(
    h: jax.Array, kernel: jax.Array, bias: jax.Array, targets: Targets, chunk: int
) -> jax.Array:
    """Return losses [B] as `loss_and_grads`, for `jax.grad`: gradients are arrays."""
    normalizer, _ = _normalizers(h, kernel, bias, chunk, with_mean=False)
    return _losses(h, kernel, bias, targets, normalizer)[0]


def _forward(
    h: jax.Array, kernel: jax.Array, bias: jax.Array, targets: Targets, chunk: int
) -> tuple:
    normalizer, mean = _normalizers(h, kernel, bias, chunk, with_mean=True)
    losses, total = _losses(h, kernel, bias, targets, normalizer)
    return losses, (h, kernel, bias, targets, normalizer, mean, total)


def _backward(chunk: int, residuals: tuple, scale: jax.Array) -> tuple:
    h, targets = residuals[0], residuals[3]
    dh, grad = _grads(residuals, scale, chunk)
    # targets are data, of which two are integers
    none: Any = np.zeros(targets.rows.shape, jax.dtypes.float0)
    nothing = Targets(none, none, jnp.zeros_like(targets.shares))
    return dh.astype(h.dtype), *grad.arrays(), nothing


cross_entropy.defvjp(_forward, _backward)


def losses_and_top(
    h: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    targets: Targets,
    k: int,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return (losses [B], labels of the k largest scores [B, k]), for evaluations."""
    size = chunk or default_chunk(h.shape[0])
    normalizer, top = top_k(h, kernel, bias, k, size)
    return _losses(h, kernel, bias, targets, normalizer)[0], top


def top_k(
    h: jax.Array, kernel: jax.Array, bias: jax.Array, k: int, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """Return (logsumexp of the scores [B], labels of the k largest scores [B, k]).

    Among equal scores the smaller label comes first, as in `jax.lax.top_k`.
    """

    def part(start: Any, size: int, carry: tuple) -> tuple:
        sums, values, labels = carry
        w, b = _slice(kernel, start, size), _slice(bias, start, size)
        z = scores(h, w, b)
        best, found = _top_of(z, min(k, size))
        both = jnp.concatenate([values, best], 1)
        ids = jnp.concatenate([labels, found + start], 1)
        values, places = jax.lax.top_k(both, k)
        labels = jnp.take_along_axis(ids, places, 1)
        return _accumulated(sums, z, None), values, labels

    rows = h.shape[0]
    nothing = jnp.full((rows, k), -jnp.inf), jnp.zeros((rows, k), jnp.int32)
    carry = _no_sums(h), *nothing
    sums, _, labels = over_chunks(len(kernel), chunk, part, carry)
    return _finished(sums)[0], labels


def _top_of(z: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Return `jax.lax.top_k` of z [B, c], faster: first among the maxima of groups.

    Each of the k largest scores is in one of the k groups with the largest maxima.
    """
    rows, size = z.shape
    if size % _GROUP or size // _GROUP <= k:
        return jax.lax.top_k(z, k)
    grouped = z.reshape(rows, size // _GROUP, _GROUP)
    _, groups = jax.lax.top_k(grouped.max(-1), k)
    groups = jnp.sort(groups, axis=1)  # among equal scores the smaller label is first
    few = jnp.take_along_axis(grouped, groups[:, :, None], 1).reshape(rows, -1)
    values, places = jax.lax.top_k(few, k)
    group = jnp.take_along_axis(groups, places // _GROUP, 1)
    return values, group * _GROUP + places % _GROUP


class _Sums(NamedTuple):
    maximum: jax.Array  # [B] of the scores so far
    total: jax.Array  # [B] sum of exp(z - maximum)
    rows: jax.Array | None  # [B, H] the same sum, weighted with the rows of W


def _no_sums(h: jax.Array, with_mean: bool = False) -> _Sums:
    shape = h.shape[:1]
    rows = jnp.zeros(h.shape, jnp.float32) if with_mean else None
    return _Sums(jnp.full(shape, -jnp.inf), jnp.zeros(shape), rows)


def _accumulated(sums: _Sums, z: jax.Array, w: jax.Array | None) -> _Sums:
    """Return the sums after a chunk with scores z [B, c] and rows w [c, H]."""
    maximum = jnp.maximum(sums.maximum, z.max(1))
    decay, e = jnp.exp(sums.maximum - maximum), jnp.exp(z - maximum[:, None])
    rows = None
    if w is not None and sums.rows is not None:
        rows = sums.rows * decay[:, None] + product(e, w)
    return _Sums(maximum, sums.total * decay + e.sum(1), rows)


def _finished(sums: _Sums) -> tuple[jax.Array, Any]:
    """Return (logsumexp [B], sum_c p_c W_c [B, H])."""
    mean = None if sums.rows is None else sums.rows / sums.total[:, None]
    return sums.maximum + jnp.log(sums.total), mean


def _normalizers(
    h: jax.Array, kernel: jax.Array, bias: jax.Array, chunk: int, with_mean: bool
) -> tuple[jax.Array, Any]:
    def part(start: Any, size: int, sums: _Sums) -> _Sums:
        w, b = _slice(kernel, start, size), _slice(bias, start, size)
        return _accumulated(sums, scores(h, w, b), w if with_mean else None)

    return _finished(over_chunks(len(kernel), chunk, part, _no_sums(h, with_mean)))


def _losses(
    h: jax.Array, kernel: jax.Array, bias: jax.Array, targets: Targets, normalizer: Any
) -> tuple[jax.Array, jax.Array]:
    """Return (losses [B], T [B])."""
    rows, columns, _ = targets  # indices of padding are clipped
    products = h.at[rows].get(mode="clip") * kernel.at[columns].get(mode="clip")
    z = jnp.sum(products, -1) + bias.at[columns].get(mode="clip")
    z = z - normalizer.at[rows].get(mode="clip")
    losses = -targets.sum_per_example(targets.shares * z, h.shape[0])
    return losses, targets.sum_per_example(targets.shares, h.shape[0])


def _grads(
    residuals: tuple, scale: jax.Array, chunk: int
) -> tuple[jax.Array, SoftmaxGrad]:
    """Return dh and the gradient of W and b, from what `_forward` keeps."""
    h, kernel, bias, targets, normalizer, mean, total = residuals
    rows, columns, shares = targets
    true = shares[:, None] * kernel.at[columns].get(mode="clip")
    dh = scale[:, None] * (
        total[:, None] * mean - targets.sum_per_example(true, h.shape[0])
    )
    scaled = targets._replace(shares=shares * scale.at[rows].get(mode="clip"))
    return dh, SoftmaxGrad(h, kernel, bias, normalizer, scale * total, scaled, chunk)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the matrix product a b, summed in float32."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _slice(x: jax.Array, start: Any, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size)


def _put(x: jax.Array, part: jax.Array, start: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(x, part, start, 0)


def over_chunks(
    num: int, chunk: int, part: Callable[[Any, int, Carry], Carry], carry: Carry
) -> Carry:
    """Return the carry after part(start, size, carry) for every chunk of `num`.

    The last chunk may be smaller.
    """
    whole = num // chunk
    if whole:
        carry = jax.lax.fori_loop(
            0, whole, lambda i, carry: part(i * chunk, chunk, carry), carry
        )
    if num % chunk:
        carry = part(whole * chunk, num % chunk, carry)
    return carry
