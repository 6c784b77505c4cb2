"""Compressed merges: messages, error feedback, and their bytes."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_cases import ETA, START, Workers, close

from hetjax import formulas, local, merge, tree
from hetjax.machine.merge_times import Traffic
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.weights import proportional_weights
from hetjax.merge.merge_bytes import compressed_bytes, dense


def descending(rate, momentum=0.0):
    """v <- b v + D;   c <- c - g (D + b v): DiLoCo's merge, for these tests."""

    def apply(state, group, stats, op):
        alpha = proportional_weights(jnp.ones(group.size), stats.present)
        moves = group.each(lambda r: tree.difference(r.carry["round_start"], r.params))
        mean = moves.total(lambda d: d, alpha)
        v = jax.tree.map(lambda v, d: momentum * v + d, state.memory, mean)
        center = jax.tree.map(
            lambda c, d, v: c - rate * (d + momentum * v), state.center, mean, v
        )
        state = state._replace(center=center, memory=v)
        if MergeOp.FETCH not in op:
            return state, group
        return state, group.each(lambda r: members.reset_to(r, center, ()))

    return merge.group_merge(
        members.center_with(members.zeros_like),
        apply,
        requires=("round_start",),
        properties=merge.MergeProperty.BROADCASTS,
    )


def trained(merging, rounds=3):
    """The model and the residuals after rounds of two workers of two steps."""
    state, of = merging.init(START), Workers(local.sgd(), merging, 2)
    for _ in range(rounds):
        for worker in (0, 1):
            of.works(worker, 2)
        stats = merge.stats([2, 2], learning_rate=ETA)
        state, after = merging.apply(state, tuple(of.replicas), stats)
        of.replicas = list(after)
    residuals = [r.carry["residual"]["x"] for r in after if "residual" in r.carry]
    return merging.model(state)[0]["x"], residuals


# the vectors of docs/algorithms L.11


def test_sparse_loco():
    merging = merge.compressed(descending(0.8), top_k=1, chunk=2, error_feedback=0.95)
    center, residuals = trained(merging)
    close(center, (0.527, -0.01))
    close(residuals, [(0.420625, 0), (0, 0.525)])
    up, down = merging.traffic(START, (), PUSH_FETCH)
    assert (6 * up, down) == (30, 8)


def test_the_mean_over_senders():
    merging = merge.compressed(
        descending(0.8), top_k=1, chunk=2, error_feedback=0.95, average="senders"
    )
    close(trained(merging)[0], (0.6, -0.14))


@pytest.mark.parametrize("feedback", [0.95, 1.0])
def test_diloco_in_four_bits(feedback):
    """In round 3 both round to the same integers, -7 (6.65, 6.60) and -1 (.69, .69)."""
    merging = merge.compressed(descending(0.7, 0.9), bits=4, error_feedback=feedback)
    close(trained(merging)[0], (0.337793, 0.154043))


def test_diloco_in_four_bits_without_feedback():
    """As the loop in NumPy: the integers of round 3 are -5 and 0, not -7 and -1."""
    merging = merge.compressed(descending(0.7, 0.9), bits=4, error_feedback=None)
    center, residuals = trained(merging)
    close(center, (0.269816, 0.154043))
    assert residuals == []


def test_with_everything_kept_it_is_the_merge():
    average = merge.average()
    assert merge.compressed(average) is average
    assert merge.compressed(average, top_k=8, chunk=8, error_feedback=0.5) is average
    # but for the bytes, where members receive the messages of all others
    gathered = merge.compressed(average, down="messages", workers=3)
    assert gathered.apply is average.apply
    assert gathered.traffic(START, (), PUSH_FETCH) == Traffic(8, 16)


@pytest.mark.parametrize("feedback", [0.5, None])
def test_messages_that_hold_everything_change_nothing(feedback):
    """Chunks of one entry: the message is exact, whatever B is."""
    merging = merge.compressed(
        descending(0.7, 0.9), top_k=2, chunk=3, error_feedback=feedback
    )
    assert merging.traffic is not None
    center, residuals = trained(merging)
    close(center, trained(descending(0.7, 0.9))[0])
    for e in residuals:
        close(e, (0, 0))


# messages against NumPy


MESSAGES = [
    # values by tensor, how, decoded
    (
        ([0.5, -2, 1, 0, 3], [-3, 0.1]),
        {"top_k": 1, "chunk": 2, "bits": 8},
        ([0, -2.007874, 0.992126, 0, 3], [-3, 0]),
    ),
    (([1, -0.3, 0.06, 0],), {"bits": 4}, ([1, -0.285714, 0, 0],)),
    (([1, -0.3, 0.06, 0],), {"bits": "bf16"}, ([1, -0.300781, 0.060059, 0],)),
    (([1, -2, 0.5, 3],), {"bits": 2}, ([0.75, -2, 0.75, 3],)),
    (([0, 0, 0],), {"bits": 8}, ([0, 0, 0],)),
    (([2.5],), {"bits": 2}, ([2.5],)),  # no spread
    # the earlier of two equal entries
    (([1, -1, 1, 1],), {"top_k": 1, "chunk": 3}, ([1, 0, 0, 1],)),
]


class MessagesTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_vectors(self):
        for values, how, expected in MESSAGES:
            message = self.variant(
                lambda x, how=how: formulas.compressed_message(x, **how)
            )
            found = message(tuple(map(jnp.float32, values)))
            for d, e in zip(found.decoded, expected, strict=True):
                close(d, e)


def top(x, k, chunk):
    """The entries that stay, chunk by chunk."""
    kept = np.zeros(x.size, bool)
    for start in range(0, x.size, chunk):
        part = np.abs(x[start : start + chunk])
        kept[start + np.argsort(-part, kind="stable")[:k]] = True
    return kept


def decoded(x, kept, bits):
    """A tensor's message in float64."""
    sent = x[kept]
    if bits == "bf16":
        new = sent.astype(jnp.bfloat16).astype(np.float64)
    elif bits in (8, 4):
        scale = np.abs(sent).max() / (2 ** (bits - 1) - 1) or 1.0
        new = np.round(sent / scale) * scale
    elif bits == 2:
        s = 6 * (np.std(sent, ddof=1) if sent.size > 1 else 0) / 4 or 1.0
        place = np.clip(np.round((sent - sent.mean()) / s + 2), 0, 3)
        new = np.array([sent[place == p].mean() for p in place])
    else:
        new = sent
    result = np.zeros(x.size)
    result[kept] = new
    return result


@cache
def message_of(top_k, chunk, bits):
    return jax.jit(
        lambda x: formulas.compressed_message(x, top_k=top_k, chunk=chunk, bits=bits)
    )


SHAPES = ((3, 5), (), (7,))


# of normal numbers, no ratio is so near a half that rounding has two answers
@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**31),
    st.sampled_from(
        [(1, 4, None), (3, 4, 8), (2, 64, 2), (None, 4096, 4), (None, 1, "bf16")]
    ),
)
def test_messages_agree_with_numpy(seed, how):
    rng, (top_k, chunk, bits) = np.random.default_rng(seed), how
    values = [np.float32(rng.normal(size=s)) for s in SHAPES]
    found = message_of(top_k, chunk, bits)(values)
    for x, d, sent in zip(values, found.decoded, found.sent, strict=True):
        flat = x.ravel().astype(np.float64)
        expected = top(flat, top_k or chunk, chunk)
        np.testing.assert_array_equal(np.ravel(sent), expected)
        np.testing.assert_allclose(
            np.ravel(d), decoded(flat, expected, bits), rtol=1e-5, atol=1e-6
        )


# error feedback over several merges, with absent members


def test_absent_members_keep_their_residuals_and_senders_are_counted():
    rng = np.random.default_rng(1)
    how = {"top_k": 1, "chunk": 2, "error_feedback": 0.9, "average": "senders"}
    merging = merge.compressed(descending(1.0), **how)
    apply = jax.jit(merging.apply)
    state = merging.init(jnp.zeros(4))
    of = [local.new_replica(local.sgd(), jnp.zeros(4), requires=merging.requires)] * 3
    c, e = np.zeros(4), np.zeros((3, 4))
    for steps in ((1, 1, 1), (1, 0, 1), (0, 0, 2), (0, 0, 0), (1, 1, 0)):
        moves = rng.normal(size=(3, 4))
        here = np.array(steps) > 0
        sent, total = np.zeros(4), np.zeros(4)
        for i in np.flatnonzero(here):
            e[i] = 0.9 * e[i] + moves[i]
            kept = top(e[i], 1, 2)
            sent, total = sent + kept, total + np.where(kept, e[i], 0)
            e[i] = np.where(kept, 0, e[i])
        c = c - total / np.maximum(sent, 1)
        replicas = tuple(
            r._replace(params=r.params - jnp.float32(m))
            for r, m in zip(of, moves, strict=True)
        )
        state, of = apply(state, replicas, merge.stats(steps, num_workers=3))
        np.testing.assert_allclose(state.center, c, atol=2e-6)
        for i in range(3):
            np.testing.assert_allclose(of[i].carry["residual"], e[i], atol=2e-6)
            np.testing.assert_array_equal(of[i].params, state.center)


def test_a_member_that_does_not_fetch_keeps_its_model():
    merging = merge.compressed(descending(1.0), bits=4)
    replica = local.new_replica(
        local.sgd(), jnp.zeros(3, jnp.bfloat16), requires=merging.requires
    )
    replica = replica._replace(params=jnp.bfloat16([1, 0.3, 0.06]))
    stats, state = merge.stats([1]), merging.init(jnp.zeros(3))
    _, (after,) = merging.apply(state, (replica,), stats, MergeOp.PUSH)
    chex.assert_trees_all_equal(after.params, replica.params)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, replica)
    assert np.abs(after.carry["residual"]).max() > 0.01


def test_a_residual_that_is_not_finite_counts_as_zero():
    merging = merge.compressed(descending(1.0), top_k=1, chunk=2)
    replica = local.new_replica(local.sgd(), jnp.zeros(2), requires=merging.requires)
    carry = {**replica.carry, "residual": jnp.full(2, jnp.nan)}
    replica = replica._replace(params=jnp.float32([2, 1]), carry=carry)
    state = merging.init(jnp.zeros(2))
    state, (after,) = merging.apply(state, (replica,), merge.stats([1]))
    close(state.center, (2, 0))
    close(after.carry["residual"], (0, -1))


# bytes


def test_bytes():
    params = {"w": jnp.zeros((3, 5)), "b": jnp.zeros(2)}
    assert dense(params) == 68
    assert dense(params, {"mean": jnp.zeros(3)}, copies=2) == 148
    assert compressed_bytes(params) == 68  # no indices where all entries are sent
    # 15 and 2 values of 8, 4 and 2 bits, and the scales of two tensors
    assert compressed_bytes(params, bits=8) == 15 + 2 + 8
    assert compressed_bytes(params, bits=4) == 8 + 1 + 8
    assert compressed_bytes(params, bits=2) == 4 + 1 + 40
    assert compressed_bytes(params, bits="bf16") == 30 + 4
    # w: chunks of 8 and 7, two entries of 32 + 3 bits of each; b: all, without indices
    assert compressed_bytes(params, top_k=2, chunk=8) == 18 + 8
    # an index is of a whole chunk, also in a small tensor: 2 (32 + 6) bits
    assert compressed_bytes(jnp.zeros(3), top_k=2, chunk=64) == 10
    assert compressed_bytes(jnp.zeros(3, jnp.int32), bits=8) == 0  # not sent


def test_traffic():
    def of(op=PUSH_FETCH, inner=None, **how):
        how = {"top_k": 1, "chunk": 2, **how}
        merging = merge.compressed(inner or merge.average(), **how)
        return merging.traffic(START, {"mean": jnp.zeros(3)}, op)

    assert of() == Traffic(5 + 12, 8 + 12)
    assert of(op=MergeOp.PUSH) == Traffic(17, 0)
    assert of(op=MergeOp.FETCH) == Traffic(0, 20)
    assert of(down="messages", workers=4) == Traffic(17, 3 * 5 + 12)
    # the control variates of SCAFFOLD are not compressed
    assert of(inner=merge.scaffold()) == Traffic(5 + 8 + 12, 16 + 12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: merge.compressed(m, top_k=0), "top_k=0: pass .* at least 1"),
        (lambda m: merge.compressed(m, top_k=9, chunk=8), "top_k=9 of chunk=8"),
        (lambda m: merge.compressed(m, bits=3), "bits=3: choose one of bf16, 8, 4, 2"),
        (lambda m: merge.compressed(m, error_feedback=2.0), "error_feedback=2.0"),
        (lambda m: merge.compressed(m, average="all"), "average='all'"),
        (lambda m: merge.compressed(m, down="messages"), "pass workers="),
        (lambda m: merge.compressed(merge.sma(), bits=8), "models of their own"),
        (
            lambda m: merge.compressed(merge.gradient_aggregation(), bits=8),
            "takes gradients",
        ),
        (
            lambda m: merge.compressed(m._replace(part=lambda name: m), bits=8),
            "compress first",
        ),
    ],
)
def test_settings_that_do_not_fit(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make(merge.average())
    assert "\n" not in str(error.value)
