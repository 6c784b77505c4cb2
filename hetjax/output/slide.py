"""SLIDE: softmax over each example's true labels and those found in hash tables."""

import math
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.arguments import Bounds, NotNegative, checked
from hetjax.output.candidates import Candidates, layer
from hetjax.output.hashing import Hash, Hashing, HashTables, evenly
from hetjax.output.layers import MakeLayer, OutputLayer
from hetjax.recipes import by_name

PRESETS: dict[str, dict[str, Any]] = {
    # SLIDE (MLSys 2020) on Amazon-670k; Delicious-200k used SimHash with K = 9
    "paper": {
        "hash": "dwta",
        "codes": 8,
        "tables": 50,
        "rebuild_decay": 0.1,
        "renew_every": 1,
    },
    # the optimized code (MLSys 2021): its smaller setting for Amazon-670k
    "optimized": {
        "hash": "dwta",
        "codes": 5,
        "tables": 256,
        "rebuild_decay": 0.0,
        "renew_every": 20,
    },
}
BUCKET_SIZE, RANGE_BITS = 128, 18  # of the public code
MOST_CODES = 2**16  # K L, in all tables; the public code has at most 6,144
MOST_STEPS = 2**30 - 1  # between rebuilds
# positions of active labels are multiplied with each other, in 32 bits
Active = Annotated[int, Bounds(1, 20_000)]
Codes = Annotated[int, Bounds(1, MOST_CODES)]
Steps = Annotated[int, Bounds(1, MOST_STEPS)]


@by_name
@checked
def slide(
    *,
    preset: Literal["paper", "optimized"] = "paper",
    hash: Hash | None = None,
    codes: Codes | None = None,
    tables: Codes | None = None,
    active: Active = 1000,
    rebuild_every: Steps = 50,
    rebuild_decay: NotNegative | None = None,
    renew_every: Steps | None = None,
) -> MakeLayer:
    """SLIDE's output layer: only active labels have scores, errors and updates.

        loss = -sum_c t_c (z_c - log sum_{a in A} exp z_a),   t = 1/|labels|

    A consists of the true labels and the content of h's bucket in each of L `tables`,
    addressed by K `codes`: "dwta" (position of the largest of 8 coordinates) or
    "simhash" (signs of sparse projections). If these are fewer than `active` distinct
    labels, arbitrary ones are added as in the public code; if they are more, `active`
    of them are taken evenly (the public code has no such bound, but arrays here have
    one shape). Of the buckets' content, 2 `active` entries are examined, spread evenly
    over the tables. Buckets hold the last 128 labels that fall into them.

    The tables hold the rows of W as of the last rebuild. The first rebuild comes after
    `rebuild_every` steps, the interval before the t-th is e^(`rebuild_decay` (t - 1))
    times as long, and every `renew_every`-th rebuild draws new hash functions.
    `preset="paper"` is DWTA with K = 8, L = 50 and growing intervals (the paper does
    not give the rate; 0.1 is our choice); "optimized" is K = 5, L = 256, constant
    intervals, and new functions at every twentieth rebuild.

    The tables are part of the model state, on the device. Each worker has separate
    tables, which merges do not change and which it rebuilds from its rows of W. The
    merged model retains the initial tables, with which a worker that joins later
    starts. Source: docs/algorithms H.
    """
    given = {"hash": hash, "codes": codes, "tables": tables}
    given |= {"rebuild_decay": rebuild_decay, "renew_every": renew_every}
    overrides = {name: value for name, value in given.items() if value is not None}
    chosen = {**PRESETS[preset], **overrides}
    if chosen["codes"] * chosen["tables"] > MOST_CODES:
        raise ValueError(
            f"{chosen['codes']} codes in each of {chosen['tables']} tables: codes * "
            f"tables must be at most {MOST_CODES:,}"
        )
    hashing = Hashing(chosen["hash"], chosen["codes"], chosen["tables"], RANGE_BITS)
    schedule = _RebuildSchedule(
        hashing, rebuild_every, chosen["rebuild_decay"], chosen["renew_every"]
    )

    def make(counts: np.ndarray) -> OutputLayer:
        num = len(counts)
        size = min(active, num)
        # a shuffled list of labels; each example takes it with a random offset
        listed = np.arange(size, dtype=np.int64) * _coprime(num) % num

        def choose(
            h: jax.Array, w: jax.Array, b: Any, state: dict[str, Any], key: jax.Array
        ) -> tuple[Candidates, dict[str, Any]]:
            # a loop of at most one iteration: `cond` would copy the tables every step
            state = jax.lax.while_loop(
                lambda state: state["steps"] >= state["next"],
                lambda state: schedule.rebuilt(w, state),
                state,
            )
            state = {**state, "steps": state["steps"] + 1}
            buckets = hashing.buckets(
                h, schedule.functions_key(state["key"], state["rebuilds"])
            )
            tables = HashTables(state["labels"], state["starts"])
            found, count = tables.lookup(buckets, BUCKET_SIZE, 2 * size)
            offset = jax.random.randint(key, (len(h), 1), 0, num)
            others = (jnp.asarray(listed, jnp.int32)[None] + offset) % num
            ids = _distinct(found, count, others)
            return Candidates(ids, jnp.zeros(ids.shape, jnp.float32)), state

        more = {"active": active, "rebuild_every": rebuild_every}
        return layer("slide", choose, schedule.init, **chosen, **more)

    return make


class _RebuildSchedule(NamedTuple):
    """The layer's state: the tables and the schedule of their rebuilds."""

    hashing: Hashing
    rebuild_every: int
    rebuild_decay: float
    renew_every: int

    def init(self, w: jax.Array, key: jax.Array) -> dict[str, Any]:
        """Return the initial state."""
        tables = HashTables.build(w, self.hashing, jax.random.fold_in(key, 0))
        return {
            "labels": tables.labels,
            "starts": tables.starts,
            "steps": jnp.zeros((), jnp.int32),
            "rebuilds": jnp.zeros((), jnp.int32),
            "next": jnp.full((), self.rebuild_every, jnp.int32),
            "key": jax.random.key_data(key),
        }

    def rebuilt(self, w: jax.Array, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state after a rebuild."""
        number = state["rebuilds"] + 1
        wait = self.rebuild_every * jnp.exp(self.rebuild_decay * number)
        wait = jnp.minimum(wait, MOST_STEPS).astype(jnp.int32)
        tables = HashTables.build(
            w, self.hashing, self.functions_key(state["key"], number)
        )
        return {
            **state,
            "labels": tables.labels,
            "starts": tables.starts,
            "rebuilds": number,
            # even the maximum plus the interval fits into 32 bits
            "next": jnp.minimum(state["next"], MOST_STEPS) + wait,
        }

    def functions_key(self, key_data: jax.Array, rebuilds: jax.Array) -> jax.Array:
        """Return the key of the hash functions after `rebuilds` rebuilds."""
        key = jax.random.wrap_key_data(key_data)
        return jax.random.fold_in(key, rebuilds // self.renew_every)


def _distinct(found: jax.Array, count: jax.Array, others: jax.Array) -> jax.Array:
    """Return [B, m] distinct ids: the first `count` of `found`, then some of `others`.

    Ids of `found` [B, n] may be repeated; those of `others` [B, m] are distinct, so
    that both together always have m. If there are too many, ids are taken evenly.
    """
    size = others.shape[1]
    none = jnp.uint32(2**32 - 1)
    keys = jnp.where(
        jnp.arange(found.shape[1])[None] < count[:, None],
        found.astype(jnp.uint32) << 1,
        none,
    )
    # a found id is sorted before the same id among the others
    keys = jnp.concatenate([keys, (others.astype(jnp.uint32) << 1) | 1], axis=1)
    keys = jnp.sort(keys, axis=1)
    ids = (keys >> 1).astype(jnp.int32)
    new = jnp.concatenate(
        [jnp.ones((len(ids), 1), bool), ids[:, 1:] != ids[:, :-1]], axis=1
    )
    new &= keys != none
    of_found = new & (keys & 1 == 0)
    hits = jnp.cumsum(of_found, axis=1, dtype=jnp.int32)
    rest = jnp.cumsum(new & ~of_found, axis=1, dtype=jnp.int32)
    total = jnp.minimum(hits[:, -1:], size)
    place = jnp.arange(size, dtype=jnp.int32)[None]
    hit = evenly(place, hits[:, -1:], total) + 1
    other = evenly(place - total, rest[:, -1:], size - total) + 1
    first_where = jax.vmap(jnp.searchsorted)  # a row of counts reaches a number
    at = jnp.where(place < total, first_where(hits, hit), first_where(rest, other))
    return jnp.take_along_axis(ids, at, axis=1)


def _coprime(num: int) -> int:
    """Return a number coprime to `num`, near its golden section."""
    step = max(1, round(num * 0.6180339887))
    while math.gcd(step, num) != 1:
        step += 1
    return step
