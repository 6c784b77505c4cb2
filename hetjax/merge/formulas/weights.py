"""Weights of members, as stateless functions: arrays [n] in, arrays [n] out.

`present` [n] bool marks the members that take part (default: all); the others have
weight zero. Settings may be arrays, also under `jit` and under `vmap` over settings.
"""

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hetjax import tree
from hetjax.arguments import as_kind
from hetjax.merge.group import Group
from hetjax.merge.merge_checks import check_steps
from hetjax.traced_settings import is_given
from hetjax.tree import PyTree

Numbers: TypeAlias = ArrayLike | list[float] | list[int] | tuple[float, ...]

Norm = Literal["l2_over_dim", "rms", "rms_per_leaf"]
WeightRule = Literal["paper", "local_steps", "local_steps_x_batch"]


def floats(values: Numbers) -> jax.Array:
    """The values as a float32 array."""
    return jnp.asarray(values, jnp.float32)


def presence_mask(values: jax.Array, present: ArrayLike | None) -> jax.Array:
    """Return `present` as an array [n] bool; by default all n `values` are present."""
    if present is None:
        return jnp.ones(values.shape, bool)
    return jnp.asarray(present, bool)


def proportional_weights(raw: Numbers, present: ArrayLike | None = None) -> jax.Array:
    """[n] alpha_i = raw_i / sum_j raw_j, over the members that are present.

    If no member is present, all weights are zero, so that a center does not move.
    """
    raw = floats(raw)
    raw = jnp.where(presence_mask(raw, present), raw, 0.0)
    total = raw.sum()
    return raw / jnp.where(total > 0, total, 1.0)


def bias_weights(local_steps: Numbers, present: ArrayLike | None = None) -> jax.Array:
    """[n] alpha_i = tau_i / sum_k tau_k for tau_i local steps of member i.

    Source: Biased Local SGD, equation 4 (system-aware aggregation).

    >>> bias_weights([4, 12]).tolist()
    [0.25, 0.75]
    """
    check_steps("bias_weights", local_steps, True if present is None else present)
    return proportional_weights(local_steps, present)


def normalized_weights(
    local_steps: Numbers,
    batch_sizes: Numbers,
    *,
    norms: Numbers,
    delta: ArrayLike = 0.1,
    threshold: ArrayLike = 0.1,
    rule: WeightRule = "paper",
    present: ArrayLike | None = None,
) -> jax.Array:
    """[n] the weights of Algorithm 2 of the Adaptive SGD paper.

        alpha_i = b_i / sum_j b_j   if all u_i are equal,   else  u_i / sum_j u_j
        if norm_i < threshold for all i:  alpha_r *= 1 + delta,  alpha_s *= 1 - delta
                                          with r = argmax u, s = argmin u

    u_i: `local_steps` (updates in the paper), b_i: `batch_sizes` [examples], `norms`:
    `model_norm` of every model, `threshold`: pert_thr in the paper. Weights are not
    normalized again after the perturbation, so their sum may differ from one. Nothing
    is perturbed if r = s; ties take the lowest index. `rule`: "paper" as above,
    "local_steps" (always u_i) or "local_steps_x_batch" (u_i b_i). Source:
    docs/algorithms A.3.

    >>> [f"{w:.3f}" for w in normalized_weights([3, 1], [8, 8], norms=[0.0, 0.0])]
    ['0.825', '0.225']
    """
    u = floats(local_steps)
    here = presence_mask(u, present)
    u = jnp.where(here, u, 0.0)  # so that an absent member is not the busiest
    found = perturbed_weights(
        u, floats(batch_sizes), floats(norms), here, delta, threshold, rule
    )
    return found.alpha


class Perturbed(NamedTuple):
    """Weights of Algorithm 2."""

    alpha: jax.Array  # [n]
    excess: jax.Array  # [] their sum less one
    met: jax.Array  # [] bool: whether all norms were below the threshold
    changed: jax.Array  # [] bool: whether the perturbation changed the weights


def perturbed_weights(
    u: jax.Array,
    b: jax.Array,
    norms: jax.Array,
    present: jax.Array,
    delta: ArrayLike,
    threshold: ArrayLike,
    rule: WeightRule,
) -> Perturbed:
    """`normalized_weights`, and what became of them."""
    as_kind("rule", rule, WeightRule)
    raw = u * b if rule == "local_steps_x_batch" else u
    if rule == "paper":
        equal = jnp.all((u == jnp.max(u)) | ~present)
        raw = jnp.where(equal, b, u)
    alpha = proportional_weights(raw, present)
    met = jnp.all((norms < threshold) | ~present) & jnp.any(present)
    r = jnp.argmax(u)
    s = jnp.argmin(jnp.where(present, u, jnp.inf))
    changed = met & (u[r] != u[s]) & (jnp.asarray(delta) != 0)
    index = jnp.arange(u.shape[0])
    factor = 1 + delta * (index == r) - delta * (index == s)
    excess = jnp.where(changed, delta * (alpha[r] - alpha[s]), 0.0)
    return Perturbed(jnp.where(changed, alpha * factor, alpha), excess, met, changed)


def model_norm(params: PyTree, norm: Norm = "l2_over_dim") -> jax.Array:
    """[] the size of a model's d parameters.

    "l2_over_dim": ||w||_2 / d (as in the text of the Adaptive SGD paper); "rms":
    ||w||_2 / sqrt(d); "rms_per_leaf": the largest root mean square of a leaf.
    """
    as_kind("norm", norm, Norm)
    if norm == "rms_per_leaf":
        leaves = [x for x in jax.tree.leaves(params) if tree.is_float(x)]
        return jnp.max(jnp.stack([jnp.sqrt(tree.mean_square(x)) for x in leaves]))
    rms = jnp.sqrt(tree.mean_square(params))
    # ||w||_2 / d = rms / sqrt(d)
    return rms if norm == "rms" else rms / jnp.sqrt(float(tree.size(params)))


def nova_weights(
    local_steps: Numbers,
    shares: Numbers | None = None,
    *,
    momentum: ArrayLike = 0.0,
    proximal: ArrayLike = 0.0,
    learning_rates: Numbers = 1.0,
    present: ArrayLike | None = None,
) -> jax.Array:
    """[n] tau_eff p_i / ||a_i||_1: FedNova's weights of the moves Delta_i.

        tau_eff = sum_i p_i ||a_i||_1

    p_i is the member's share of the data (default: equal shares). For tau_i steps,
    ||a_i||_1 is tau_i with plain SGD; with `momentum` rho it is the sum over
    s = 1..tau_i of (1 - rho^s) / (1 - rho); with the `proximal` weight mu and learning
    rates eta_i it is the sum of (1 - eta_i mu)^(s-1), and there
    tau_eff = sum_i p_i tau_i. Without mu, weights are exactly p_i if all ||a_i||_1
    are equal. Source: FedNova (Wang et al. 2020); docs/algorithms I.1.
    """
    tau = floats(local_steps)
    here = presence_mask(tau, present)
    p = proportional_weights(jnp.ones_like(tau) if shares is None else shares, here)
    tau = jnp.where(here, tau, 1.0)
    a = tau
    has_proximal = is_given(proximal)
    if is_given(momentum):
        a = momentum_norm(tau, momentum)
    if has_proximal:
        a = geometric_sum(jnp.where(here, floats(learning_rates) * proximal, 0.0), tau)
    local_steps = tau if has_proximal else a
    # p_i (tau_eff / a_i), in this order: exactly p_i where all a_i are equal
    total = jnp.sum(p * local_steps)
    equal = jnp.all((a == jnp.max(jnp.where(p > 0, a, 0.0))) | (p == 0))
    ratio = total / a
    return p * jnp.where(equal & (not has_proximal), 1.0, ratio)


def momentum_norm(tau: jax.Array, rho: ArrayLike) -> jax.Array:
    """The sum over s = 1..tau of (1 - rho^s) / (1 - rho): ||a||_1 of momentum rho.

    With e = 1 - rho it is (tau - rho G) / e, where G is the sum of rho^k over
    k = 0..tau-1. That difference cancels if tau e is small; there the sum over
    k = 0, 1, ... of (-e)^k times the binomial coefficient (tau + 1 over k + 2) is used,
    whose terms shrink at least by the factor tau e / (k + 3).
    """
    e = jnp.asarray(1 - rho, jnp.float32)
    few = tau * e < 1
    term = series = jnp.where(few, tau * (tau + 1) / 2, 0.0)
    for k in range(10):  # the next term is below 1e-8 of the first one
        term = term * -e * (tau - 1 - k) / (k + 3)
        series = series + term
    safe = jnp.where(few, 1.0, e)
    return jnp.where(few, series, (tau - rho * geometric_sum(safe, tau)) / safe)


def geometric_sum(s: jax.Array, tau: jax.Array) -> jax.Array:
    """The sum of (1 - s)^k over k = 0..tau-1, without cancellation for small s."""
    small = s < 0.5
    exact = -jnp.expm1(tau * jnp.log1p(-jnp.where(small, s, 0.0)))
    total = jnp.where(small, exact, 1 - (1 - s) ** tau)
    return jnp.where(s > 0, total / jnp.where(s > 0, s, 1.0), tau)


def accuracy_weights(
    accuracies: Numbers,
    shares: Numbers = 1.0,
    *,
    power: ArrayLike = 1.0,
    present: ArrayLike | None = None,
) -> jax.Array:
    """[n] alpha_i = p_i a_i^power / sum_k p_k a_k^power: FedAcc's weights.

    a_i: accuracies on held-out data, p_i: shares of the data. Weights are equal while
    all accuracies are zero. Source: docs/algorithms I.2.
    """
    measured = floats(accuracies)
    here = presence_mask(measured, present)
    raw = jnp.where(here, measured**power * floats(shares), 0.0)
    raw = jnp.where(jnp.sum(raw) > 0, raw, 1.0)
    return proportional_weights(raw, here)


def angles(moves: Group, shares: jax.Array) -> jax.Array:
    """[n] theta_i = arccos(<m, m_i> / (|m| |m_i|)) [radians], m = sum_i p_i m_i.

    The angles between the members' moves m_i (a Group of float32 trees) and their mean
    move; 0 if either move is zero. Source: FedAdp.
    """
    mean = moves.total(lambda m: m, shares)
    dots = moves.values(lambda m: tree.dot(mean, m))
    norms = moves.values(lambda m: tree.dot(m, m)) * tree.dot(mean, mean)
    cosine = jnp.where(norms > 0, dots / jnp.sqrt(jnp.where(norms > 0, norms, 1)), 1.0)
    return jnp.arccos(jnp.clip(cosine, -1.0, 1.0))


def angle_weights(
    thetas: Numbers,
    shares: Numbers | None = None,
    *,
    alpha: ArrayLike = 5.0,
    present: ArrayLike | None = None,
) -> jax.Array:
    """[n] psi_i = p_i e^f_i / sum_k p_k e^f_k: FedAdp's weights from angles [radians].

        f_i = a (1 - exp(-exp(-a (theta_i - 1))))         a is `alpha`

    p_i is the member's share of the data (default: equal shares). Source: FedAdp (Wu &
    Wang 2021); docs/algorithms I.3.

    >>> [f"{w:.3f}" for w in angle_weights([0.5, 1.2])]
    ['0.970', '0.030']
    """
    theta, a = floats(thetas), floats(alpha)
    share = proportional_weights(
        jnp.ones_like(theta) if shares is None else shares, present
    )
    f = a * (1 - jnp.exp(-jnp.exp(-a * (theta - 1))))
    return proportional_weights(share * jnp.exp(f), present)
