"""What a merge is: pure functions from the replicas of a group to a common model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.replica import Replica


class Facts(NamedTuple):
    """What each member did since it last took part in a merge: arrays [n], or [].

    A member without updates is absent: merges neither hear nor need it. Passive members
    come last and have none; of a node's, all below it is counted.
    """

    worker: jax.Array  # int32, index of the worker; -1 for a node
    updates: jax.Array  # local steps
    batch_size: jax.Array  # [examples] of its last work, real-valued
    examples: jax.Array  # [examples]
    rate: jax.Array  # learning rate of its last work
    staleness: jax.Array  # versions of the node's model since it was fetched
    leaves: jax.Array  # workers: 1, or as many as are below a node
    share: jax.Array  # of the data that it draws from, before normalisation
    accuracy: jax.Array  # on held-out data, where the merge measures it; else 0
    ticks: jax.Array  # [] the node's own steps since its last merge
    num_workers: jax.Array  # [] of the whole run

    @classmethod
    def unpacked(cls, table: jax.Array) -> "Facts":
        """The facts in a table [fields, n] float32, which crosses to a device at once.

        A fact of the whole group stands in all its columns.
        """
        rows = dict(zip(cls._fields, table, strict=True))
        for name in ("ticks", "num_workers"):
            rows[name] = rows[name][0]
        rows["worker"] = rows["worker"].astype(jnp.int32)
        return cls(**rows)

    @property
    def present(self) -> jax.Array:
        """[n] bool: did the member do anything?"""
        return self.updates > 0


class Merge(NamedTuple):
    """Pure functions that every merging algorithm consists of.

    init(params, model_state) -> state             one state per node of the tree
    apply(state, replicas, facts, op) -> (state, replicas)
    model(state) -> (params, model_state)          what is evaluated, in float32
    needs: slots of `Replica.carry` (see `hetjax.local.slots`)
    report(state) -> {name: scalar}                counters for the history's points
    restarts: do members go on from the merged model, with "start" kept?
    measures: what the loop measures for `Facts`: "accuracy"
    member(state) -> replica                       what a node is to the node above it
    adopt(state, replica) -> state                 what that node made of it
    moves_working: does it move passive members, which may be at work?
    """

    init: Callable[[Any, Any], Any]
    apply: Callable[[Any, tuple[Replica, ...], Facts, str], tuple[Any, tuple]]
    model: Callable[[Any], tuple[Any, Any]]
    needs: tuple[str, ...] = ()
    report: Callable[[Any], dict[str, jax.Array]] | None = None
    restarts: bool = False
    measures: tuple[str, ...] = ()
    member: Callable[[Any], Replica] | None = None
    adopt: Callable[[Any, Replica], Any] | None = None
    moves_working: bool = False


def normalized_weights(raw: jax.Array, present: jax.Array) -> jax.Array:
    """[n] weights proportional to `raw` over those present, summing to one.

    If nobody is present all are zero and a centre stays as it is.
    """
    raw = jnp.where(present, raw, 0.0)
    total = raw.sum()
    return raw / jnp.where(total > 0, total, 1.0)


def mean_rate(facts: Facts, alpha: jax.Array) -> jax.Array:
    """The members' rates, weighted; an absent one's may be NaN."""
    return jnp.sum(jnp.where(facts.present, alpha * facts.rate, 0.0))


def centered_model(state: Any) -> tuple[Any, Any]:
    """The centre and the averaged model state, of any state that has both."""
    return state.center, state.model_state


def centered_member(state: Any) -> Replica:
    """A node that is its centre to the node above."""
    return Replica(state.center, state.model_state)


def centered_adopt(state: Any, replica: Replica) -> Any:
    """The state with another centre."""
    return state._replace(center=replica.params, model_state=replica.model_state)


def restart(replica: Replica, params: Any, model_state: Any) -> Replica:
    """The replica with the merged model in its own dtypes, and its own optimizer."""
    carry = replica.carry
    params = _replaced(replica.params, params)
    if "start" in carry:
        carry = {**carry, "start": params}
    return replica._replace(
        params=params,
        model_state=_replaced(replica.model_state, model_state),
        carry=carry,
    )


def _replaced(old: Any, new: Any) -> Any:
    return tree.map_floats(lambda x, y: y.astype(x.dtype), old, new)


def without_momentum(replica: Replica) -> Replica:
    """The replica with an optimizer state of zeros: that of SGD with momentum."""
    return replica._replace(opt_state=jax.tree.map(jnp.zeros_like, replica.opt_state))


def emptied(replica: Replica, *slots: str) -> Replica:
    """The replica with zeros in these slots."""
    zeros = {s: jax.tree.map(jnp.zeros_like, replica.carry[s]) for s in slots}
    return replica._replace(carry={**replica.carry, **zeros})


def mean_statistics(state: Any, replicas: tuple[Replica, ...], alpha: jax.Array) -> Any:
    """s + sum_i alpha_i (s_i - s): the model state that goes with a weighted mean."""
    return tree.moved(state.model_state, [r.model_state for r in replicas], alpha)
