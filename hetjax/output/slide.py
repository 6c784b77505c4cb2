"""SLIDE: softmax over the true labels and those that hash tables find, per example."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.output.candidates import Candidates, layer
from hetjax.output.hashing import HASHES, Hashing, Tables
from hetjax.output.layers import MakeLayer, OutputLayer
from hetjax.recipes import by_name

PRESETS: dict[str, dict[str, Any]] = {
    # SLIDE (MLSys 2020), on Amazon-670k; on Delicious-200k SimHash with K = 9
    "paper": {
        "hash": "dwta",
        "codes": 8,
        "tables": 50,
        "rebuild_decay": 0.1,
        "renew_every": 1,
    },
    # the optimized code (MLSys 2021), its smaller setting for Amazon-670k
    "optimized": {
        "hash": "dwta",
        "codes": 5,
        "tables": 256,
        "rebuild_decay": 0.0,
        "renew_every": 20,
    },
}
BUCKET_SIZE, RANGE_BITS = 128, 18  # of the public code


@by_name
def slide(
    *,
    preset: str = "paper",
    hash: str | None = None,
    codes: int | None = None,
    tables: int | None = None,
    active: int = 1000,
    rebuild_every: int = 50,
    rebuild_decay: float | None = None,
    renew_every: int | None = None,
) -> MakeLayer:
    """SLIDE's output layer: only active labels have scores, errors and updates.

        loss = -sum_c t_c (z_c - log sum_{a in A} exp z_a),   t = 1/|labels|

    A are the true labels and the content of the bucket that h has in each of L
    `tables`, addressed by K `codes`: "dwta" (places of the largest of 8 coordinates) or
    "simhash" (signs of sparse projections). Where that is fewer than `active` labels,
    arbitrary ones are added as in the public code; where it is more, `active` of them
    are taken evenly (the public code has no such bound, but arrays here have one
    shape). Buckets keep the last 128 labels that fall into them.

    The tables hold the rows of W as they were at the last rebuild. The first rebuild
    comes after `rebuild_every` steps, the interval to the t-th is e^(`rebuild_decay` t)
    times as long, and every `renew_every`-th one draws new hash functions.
    `preset="paper"` is DWTA with K = 8, L = 50, and intervals that grow (the paper does
    not say how fast: 0.1 is ours); "optimized" is K = 5, L = 256, constant intervals,
    and new functions at every twentieth rebuild. The tables belong to the model's
    state, on the device: a merge keeps the first worker's. Source: ALGORITHMS H.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r}: choose one of {tuple(PRESETS)}")
    given = {"hash": hash, "codes": codes, "tables": tables}
    given |= {"rebuild_decay": rebuild_decay, "renew_every": renew_every}
    own = {name: value for name, value in given.items() if value is not None}
    chosen = {**PRESETS[preset], **own}
    _check(chosen, active, rebuild_every)
    hashing = Hashing(chosen["hash"], chosen["codes"], chosen["tables"], RANGE_BITS)

    def built(w: jax.Array, state: dict[str, Any]) -> dict[str, Any]:
        """The state after a rebuild."""
        number = state["rebuilds"] + 1
        wait = rebuild_every * jnp.exp(chosen["rebuild_decay"] * number)
        tables = Tables.of(w, hashing, functions(state["key"], number))
        return {
            **state,
            "labels": tables.labels,
            "starts": tables.starts,
            "rebuilds": number,
            "next": state["next"] + wait.astype(jnp.int32),
        }

    def functions(key_data: jax.Array, rebuilds: jax.Array) -> jax.Array:
        """The key of the hash functions after so many rebuilds."""
        key = jax.random.wrap_key_data(key_data)
        return jax.random.fold_in(key, rebuilds // chosen["renew_every"])

    def init(w: jax.Array, key: jax.Array) -> dict[str, Any]:
        tables = Tables.of(w, hashing, jax.random.fold_in(key, 0))
        return {
            "labels": tables.labels,
            "starts": tables.starts,
            "steps": jnp.zeros((), jnp.int32),
            "rebuilds": jnp.zeros((), jnp.int32),
            "next": jnp.full((), rebuild_every, jnp.int32),
            "key": jax.random.key_data(key),
        }

    def make(counts: np.ndarray) -> OutputLayer:
        num = len(counts)
        size = min(active, num)
        # a shuffled list of all labels, of which each example takes a part
        listed = np.arange(size, dtype=np.int64) * _coprime(num) % num

        def choose(
            h: jax.Array, w: jax.Array, b: Any, state: dict[str, Any], key: jax.Array
        ) -> tuple[Candidates, dict[str, Any]]:
            del b
            # a loop of at most one turn: `cond` would copy the tables at every step
            state = jax.lax.while_loop(
                lambda state: state["steps"] >= state["next"],
                lambda state: built(w, state),
                state,
            )
            state = {**state, "steps": state["steps"] + 1}
            buckets = hashing.buckets(h, functions(state["key"], state["rebuilds"]))
            tables = Tables(state["labels"], state["starts"])
            ids, count = tables.found(buckets, BUCKET_SIZE, size)
            offset = jax.random.randint(key, (len(h), 1), 0, num)
            others = (jnp.asarray(listed, jnp.int32)[None] + offset) % num
            ids = jnp.where(jnp.arange(size)[None] < count[:, None], ids, others)
            return _distinct(ids), state

        return layer("slide", choose, init)

    return make


def _distinct(ids: jax.Array) -> Candidates:
    """The candidates of ids [B, m]; repetitions of an id are not used."""
    ids = jnp.sort(ids, axis=1)
    first = jnp.ones((len(ids), 1), bool)
    used = jnp.concatenate([first, ids[:, 1:] != ids[:, :-1]], 1)
    return Candidates(ids, jnp.zeros(ids.shape, jnp.float32), used)


def _coprime(num: int) -> int:
    """A number without a common divisor with `num`, near its golden section."""
    step = max(1, round(num * 0.6180339887))
    while math.gcd(step, num) != 1:
        step += 1
    return step


def _check(chosen: dict[str, Any], active: int, rebuild_every: int) -> None:
    if chosen["hash"] not in HASHES:
        raise ValueError(f"hash={chosen['hash']!r}: choose one of {HASHES}")
    counts = {name: chosen[name] for name in ("codes", "tables", "renew_every")}
    counts |= {"active": active, "rebuild_every": rebuild_every}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}={value}: give a whole number of at least 1")
    if chosen["rebuild_decay"] < 0:
        raise ValueError(
            f"rebuild_decay={chosen['rebuild_decay']}: intervals grow, give 0 or more"
        )
