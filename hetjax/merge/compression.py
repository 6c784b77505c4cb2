"""Merges of compressed moves, with error feedback: SparseLoCo and quantized DiLoCo."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.arguments import Count, Share, checked
from hetjax.machine.merge_times import Traffic, moves_of
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge import members
from hetjax.merge.formulas.compression import Bits, compressed_message
from hetjax.merge.group import Group, as_group, like
from hetjax.merge.merge_bytes import compressed_bytes, dense, directed
from hetjax.merge.merge_checks import check_buffers
from hetjax.merge.types import APPLY, Merge, MergeProperty
from hetjax.replica import Buffer, Replica
from hetjax.tree import ModelState, Params, PyTree

RESIDUAL = "residual"
_TAKES = MergeOp.FETCH | MergeOp.DELIVER | MergeOp.RESET_TO_CENTER


@checked
def compressed(
    merge: Merge,
    *,
    top_k: Count | None = None,
    chunk: Count = 4096,
    bits: Bits | None = None,
    error_feedback: Share | None = 1.0,
    average: Literal["workers", "senders"] = "workers",
    down: Literal["model", "messages"] = "model",
    workers: Count | None = None,
) -> Merge:
    """The merge of what remains of the members' moves after compression.

        D_i = s_i - w_i                      s_i: the model that i was given
        e_i <- B e_i + D_i;   m_i = Q(top(e_i));   e_i <- e_i - m_i
        `merge` sees s_i - m_i in place of w_i

    top keeps the `top_k` largest of every `chunk` entries of a tensor (None: all), and
    Q rounds to `bits` (None: exact; 2 is experimental). B is `error_feedback`; None
    means m_i = Q(top(D_i)). e_i is the worker's buffer "residual"; of an absent member
    it stays, and where it is not finite it counts as zero. Model state is not
    compressed.

    `merge` averages models or moves, and its members continue from its model. By
    default a coordinate that a worker did not send counts as zero in the mean over
    workers. With average="senders" m_i is multiplied in each coordinate by (members) /
    (members that sent it) before the merge: the mean over those that sent it, if the
    merge's weights are equal.

    The bytes of `traffic`: a message up, and down the model or the messages of all
    other members, of `workers` in all. The virtual clock uses them; devices exchange
    uncompressed arrays. Promises: with everything kept it is `merge` itself. Source:
    SparseLoCo (Sarfi et al. 2025); docs/algorithms L.11. Formula: `compressed_message`.
    """
    if top_k is not None and top_k > chunk:
        raise ValueError(
            f"compressed: top_k={top_k} of chunk={chunk} entries: pass at most {chunk}"
        )
    if down == "messages" and workers is None:
        raise ValueError(
            "compressed: down='messages' needs the number of members: pass workers="
        )
    _check(merge)
    how = {"top_k": top_k, "chunk": chunk, "bits": bits}
    traffic = _traffic(merge, how, workers if down == "messages" else None)
    if top_k in (None, chunk) and bits is None:
        return merge if down == "model" else merge._replace(traffic=traffic)
    return _compressing(merge, how, error_feedback, average)._replace(traffic=traffic)


def _check(merge: Merge) -> None:
    if MergeProperty.BROADCASTS not in merge.properties:
        raise ValueError(
            "compressed: the members keep models of their own: pass a merge whose "
            "members continue from its model (MergeProperty.BROADCASTS)"
        )
    if "grad_sum" in merge.requires:
        raise ValueError(
            "compressed: the merge takes gradients: pass one that averages models"
        )
    if merge.part is not None:
        raise ValueError(
            "compressed: the merge has parts: compress first, then divide into parts"
        )


class _Sent(NamedTuple):
    """A member's message, and what remains of its move."""

    decoded: PyTree
    sent: PyTree  # float32, 1 where an entry is in the message
    residual: PyTree


def _compressing(
    merge: Merge, how: dict[str, Any], feedback: float | None, average: str
) -> Merge:
    """As `compressed`, without its traffic."""
    own = () if feedback is None else (Buffer(RESIDUAL, members.wide_zeros_like),)
    known = () if "round_start" in merge.requires else ("round_start",)
    requires = (*merge.requires, *known, *own)

    def apply(state, replicas, stats, op=PUSH_FETCH):
        if not moves_of(op).pushes:
            return merge.apply(state, replicas, stats, op)
        group = as_group(replicas)
        check_buffers("compressed", group.members, requires)
        sent = group.each(lambda r: _message(r, how, feedback))
        if average == "senders":
            sent = _of_senders(sent, stats.present)
        given = group.each(_as_sent, sent)
        state, after = merge.apply(state, like(replicas, given), stats, op)
        merged = dataclasses.replace(group, members=tuple(after))
        takes = bool(op & _TAKES)
        merged = merged.each(
            lambda *of: _finished(*of, takes=takes), group, sent, stats.present
        )
        return state, merged.members

    apply.__doc__, apply.__qualname__ = APPLY, "compressed.apply"
    return merge._replace(apply=apply, requires=requires)


def _message(replica: Replica, how: dict[str, Any], feedback: float | None) -> _Sent:
    """Compress the move since the member was given its model, with what remained."""
    move = tree.difference(replica.carry["round_start"], tree.widened(replica.params))
    if feedback is not None:
        move = tree.map_floats(
            lambda d, e: d + feedback * jnp.where(jnp.isfinite(e), e, 0.0),
            move,
            replica.carry[RESIDUAL],
        )
    decoded, sent = compressed_message(move, **how)
    residual = tree.difference(move, decoded)
    return _Sent(decoded, jax.tree.map(lambda x: x.astype(jnp.float32), sent), residual)


def _of_senders(sent: Group, present: jax.Array) -> Group:
    """The messages, by coordinate times (members) / (members that sent it)."""
    ones = jnp.where(present, 1.0, 0.0)
    senders = sent.total(lambda s: s.sent, ones)
    number = jnp.sum(ones)

    def scaled(message: _Sent) -> _Sent:
        decoded = tree.map_floats(
            lambda m, n: m * (number / jnp.maximum(n, 1)), message.decoded, senders
        )
        return message._replace(decoded=decoded)

    return sent.each(scaled)


def _as_sent(replica: Replica, sent: _Sent) -> Replica:
    """The replica as its message describes it: s_i - m_i, in float32."""
    start = tree.widened(replica.carry["round_start"])
    params = tree.map_floats(jnp.subtract, start, sent.decoded)
    return replica._replace(params=params)


def _finished(
    new: Replica, old: Replica, sent: _Sent, here: jax.Array, *, takes: bool
) -> Replica:
    """The replica after the merge, in its own dtypes, with its residual."""
    params = tree.cast_like(new.params, old.params) if takes else old.params
    start = tree.cast_like(new.carry["round_start"], old.params)
    new = members.with_buffer(new._replace(params=params), "round_start", start)
    if RESIDUAL not in old.carry:
        return new
    residual = tree.map_floats(
        lambda n, o: jnp.where(here, n, o), sent.residual, old.carry[RESIDUAL]
    )
    return members.with_buffer(new, RESIDUAL, residual)


def _traffic(
    merge: Merge, how: dict[str, Any], workers: int | None
) -> Callable[[Params, ModelState, MergeOp], Traffic]:
    """The bytes: messages in place of the moves; `workers` None: down comes the model.

    What the merge sends and receives besides a model, it sends and receives as before.
    """

    def traffic(params: Params, model_state: ModelState, op: MergeOp) -> Traffic:
        model = dense(params, model_state)
        whole = Traffic(model, model)
        if merge.traffic is not None:
            whole = merge.traffic(params, model_state, PUSH_FETCH)
        message, params_only = compressed_bytes(params, **how), dense(params)
        down = whole.down
        if workers is not None:
            down += (workers - 1) * message - params_only
        return directed(op, whole.up - params_only + message, down)

    return traffic
