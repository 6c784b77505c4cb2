"""SLIDE's output layer: active labels, loss against NumPy, and the rebuilds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import quick
from softmax_oracle import SHARES, Problem, close

from hetjax import sparse
from hetjax.output import candidates, slide, softmax
from hetjax.output.hashing import HASHES, Hashing, HashTables
from hetjax.output.slide import BUCKET_SIZE, PRESETS, RANGE_BITS, _distinct

LABELS = 50
KEY = jax.random.key(5)
SETTINGS = {"codes": 2, "tables": 4, "active": 12}


def layer_of(**settings):
    return slide(**{**SETTINGS, **settings})(np.ones(LABELS))


@functools.cache
def begin(**settings):
    """The layer's first state; compiled once, as the weights are."""
    return jax.jit(layer_of(**settings).init)


def spied(function):
    """Jitted, it returns its result and the candidates that it saw."""
    original = candidates._scored

    def traced(*given):
        seen = []

        def spy(h, w, b, targets, chosen):
            seen.append(chosen)
            return original(h, w, b, targets, chosen)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(candidates, "_scored", spy)
            return function(*given), seen.pop()

    return jax.jit(traced)


@functools.cache
def gradients(**settings):
    """(losses, dh, dW, db) and the candidates: one program for all kinds of targets."""

    def dense(*given):
        losses, dh, dw, db, _ = layer_of(**settings).loss_and_grads(*given)
        return losses, dh, sparse.dense(dw), sparse.dense(db)

    return spied(dense)


def given_of(p, **settings):
    """A problem's inputs of `gradients`."""
    state = begin(**settings)(p.arrays[1], KEY)
    return *p.arrays, state, p.targets, jnp.asarray(p.scale), KEY


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("kind", SHARES)
def test_loss_and_gradients_over_the_active_labels(hash, kind):
    p = Problem(kind=kind, labels=LABELS)
    found, chosen = gradients(hash=hash)(*given_of(p, hash=hash))
    active = p.t > 0
    for row, ids in zip(active, np.asarray(chosen.ids), strict=True):
        row[ids] = True
    expected = p.expected(np.where(active, 0.0, np.inf))
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    touched = np.abs(np.asarray(found[2])).sum(1) > 0
    assert not touched[~active.any(0)].any()


@pytest.mark.full  # a program for each number
@pytest.mark.parametrize("together", [1, 4])
def test_examples_may_be_taken_in_blocks_of_any_size(together, monkeypatch):
    """Of six examples, the second block of four has two."""
    p = Problem(kind="several", labels=LABELS)
    given = given_of(p, hash="dwta")
    whole, _ = gradients(hash="dwta")(*given)
    monkeypatch.setattr(candidates, "AT_ONCE", together * 12 * p.arrays[0].shape[1])
    # not the cached program: it is of all examples at once
    parts, _ = gradients.__wrapped__(hash="dwta")(*given)
    for one, other in zip(parts, whole, strict=True):
        close(one, other)


@pytest.mark.parametrize("hash", HASHES)
def test_active_labels_are_what_the_tables_hold_and_arbitrary_others(hash):
    p = Problem(kind="none", labels=LABELS)
    given = given_of(p, hash=hash)
    _, few = gradients(hash=hash)(*given)
    ids = few.ids

    @jax.jit
    def in_tables(h, state):
        hashing = Hashing(hash, 2, 4, RANGE_BITS)
        buckets = hashing.buckets(h, jax.random.fold_in(KEY, 0))
        tables = HashTables(state["labels"], state["starts"])
        return tables.lookup(buckets, BUCKET_SIZE, 24)

    labels, counts = in_tables(p.arrays[0], given[3])
    for own, row, n in zip(np.asarray(ids), np.asarray(labels), counts, strict=True):
        found, taken = set(row[:n].tolist()), set(own.tolist())
        assert len(taken) == 12
        assert found <= taken or taken <= found  # fewer than 12, or more


@pytest.mark.full  # programs of another size
@pytest.mark.parametrize("hash", HASHES)
def test_all_labels_may_be_active(hash):
    p = Problem(kind="none", labels=LABELS)
    state = begin(hash=hash)(p.arrays[1], KEY)
    layer = layer_of(hash=hash, active=LABELS)
    _, chosen = spied(layer.losses)(*p.arrays, state, p.targets, KEY)
    for ids in np.asarray(chosen.ids):
        assert sorted(ids) == list(range(LABELS))


def chosen_by_numpy(found, others, size):
    """Some ids: of what was found, or all of it and some of the others."""
    hits = sorted(set(found))
    rest = sorted(set(others) - set(hits))
    hits = [hits[k * max(len(hits), size) // size] for k in range(min(size, len(hits)))]
    more = size - len(hits)
    return hits + [rest[k * max(len(rest), more) // more] for k in range(more)]


@pytest.mark.parametrize("count", [0, 1, 5, 9, 40])
@pytest.mark.parametrize("size", [1, 7, 30])
def test_repeated_labels_count_once(count, size):
    """The public code fills up the union of the buckets, not the sum of their sizes."""
    rng = np.random.default_rng(count)
    found = rng.integers(0, 12, (6, 40)).astype(np.int32)
    others = np.stack([rng.permutation(30)[:size] for _ in found]).astype(np.int32)
    counts = np.full(6, count, np.int32)
    ids = jax.jit(_distinct)(found, counts, others)
    for row, some, rest in zip(np.asarray(ids), found, others, strict=True):
        assert row.tolist() == chosen_by_numpy(some[:count], rest, size)


NUMBERS = {"few tables": {"codes": 2, "tables": 4}}
NUMBERS |= {preset: {"preset": preset} for preset in PRESETS}


@pytest.mark.parametrize("name", quick(NUMBERS, "few tables"))
def test_as_many_active_labels_as_there_are_is_the_full_softmax(name):
    """Even if all tables find the same few labels."""
    p = Problem(labels=LABELS)
    w = 0.1 * p.w + p.w[:1]  # rows, and inputs, of nearly one direction
    h, b = np.broadcast_to(p.h[:1], p.h.shape), p.b
    layer = slide(**NUMBERS[name], active=1000)(np.ones(LABELS))

    @jax.jit
    def both(h, w, b, targets):
        losses, _ = layer.losses(h, w, b, layer.init(w, KEY), targets, KEY)
        return losses, softmax.cross_entropy(h, w, b, targets, LABELS)

    close(*both(h, w, b, p.targets))


def test_examples_without_hits_get_different_labels():
    """With empty tables, each takes another part of the list."""
    p = Problem(kind="none", labels=LABELS)
    h, w, b, state, *given = given_of(p, hash="dwta")
    state = {**state, "starts": jnp.zeros_like(state["starts"])}
    _, chosen = gradients(hash="dwta")(h, w, b, state, *given)
    ids = [tuple(row) for row in np.asarray(chosen.ids).tolist()]
    assert all(len(set(row)) == 12 for row in ids)
    assert len(set(ids)) == 6


def steps_of(layer, number, w):
    """The layer's state after each of so many steps on the same batch."""
    p = Problem(labels=LABELS)
    h, _, b = p.arrays
    state = jax.jit(layer.init)(w, KEY)
    step = jax.jit(
        lambda w, state: layer.loss_and_grads(
            h, w, b, state, p.targets, jnp.asarray(p.scale), KEY
        )[-1]
    )
    states = [jax.device_get(state)]
    for k in range(number):
        states.append(jax.device_get(step(moved(w, k), states[-1])))
    return states


def moved(w, k):
    """The weights before step k: they move, also between rebuilds."""
    move = np.random.default_rng(1).normal(size=w.shape)
    return np.float32(w + 0.5 * k * move)


@pytest.mark.parametrize(
    ("decay", "rebuilds"),
    [
        # intervals 4, 4, 4; and 4, round down 4 e^.5 = 6, 4 e^1 = 10
        (0.0, [4, 8, 12, 16, 20]),
        (0.5, [4, 10, 20]),
    ],
    ids=["constant", "growing"],
)
def test_tables_are_rebuilt_on_schedule(decay, rebuilds):
    w = Problem(labels=LABELS).w
    layer = layer_of(rebuild_every=4, rebuild_decay=decay, renew_every=2)
    states = steps_of(layer, 21, w)
    # the step after k others sees the rebuild that is due after k
    due = [k for k in range(21) if states[k + 1]["rebuilds"] > states[k]["rebuilds"]]
    assert due == rebuilds
    for k in range(21):
        same = all(
            (states[k][name] == states[k + 1][name]).all()
            for name in ("labels", "starts")
        )
        assert same == (k not in rebuilds)
    assert int(states[-1]["steps"]) == 21
    # the tables are of the weights at the rebuild; each second one has new functions
    hashing = Hashing("dwta", 2, 4, RANGE_BITS)
    tables_of = jax.jit(
        lambda w, i: HashTables.build(w, hashing, jax.random.fold_in(KEY, i))
    )
    for k, generation in ((rebuilds[0], 0), (rebuilds[1], 1)):
        expected = tables_of(moved(w, k), generation)
        np.testing.assert_array_equal(states[k + 1]["labels"], expected.labels)


def test_the_state_is_not_taken_for_statistics():
    """Floats would be averaged by merges, and batches would not be padded."""
    w = jax.ShapeDtypeStruct((LABELS, 5), jnp.float32)
    state = jax.eval_shape(layer_of().init, w, KEY)
    assert not any(jnp.issubdtype(x.dtype, jnp.floating) for x in state.values())


def test_a_rebuild_that_is_far_away_comes_once():
    """Numbers of steps have 32 bits, and e^20 times 50 has more."""
    w = Problem(labels=LABELS).w
    states = steps_of(layer_of(rebuild_every=2, rebuild_decay=20.0), 5, w)
    assert [int(state["rebuilds"]) for state in states] == [0, 0, 0, 1, 1, 1]
    assert int(states[-1]["next"]) > 2**29


def test_presets():
    """The numbers of docs/algorithms H; those of the docstring where it has none."""
    assert PRESETS == {
        "paper": {
            "hash": "dwta",
            "codes": 8,
            "tables": 50,
            "rebuild_decay": 0.1,
            "renew_every": 1,
        },
        "optimized": {
            "hash": "dwta",
            "codes": 5,
            "tables": 256,
            "rebuild_decay": 0.0,
            "renew_every": 20,
        },
    }
    for preset, chosen in PRESETS.items():
        layer = slide(preset=preset)(np.ones(LABELS))
        w = np.ones((LABELS, 16), np.float32)
        state = jax.eval_shape(layer.init, w, KEY)
        assert state["labels"].shape == (chosen["tables"], LABELS)
        assert int(jax.jit(lambda w, init=layer.init: init(w, KEY)["next"])(w)) == 50


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "fast"}, "preset='fast'"),
        ({"hash": "md5"}, "hash='md5'"),
        ({"codes": 0}, "codes=0"),
        ({"tables": 0}, "tables=0"),
        ({"active": 0}, "active=0"),
        ({"rebuild_every": 0}, "rebuild_every=0"),
        ({"renew_every": 0}, "renew_every=0"),
        ({"rebuild_decay": -1.0}, "rebuild_decay=-1.0"),
        (
            {"rebuild_decay": float("inf")},
            "rebuild_decay=inf:  ?.*number of at least 0",
        ),
        (
            {"rebuild_every": 10**10},
            "rebuild_every=10000000000: .*from 1 to 1073741823",
        ),
        ({"active": 2.5}, "active=2.5: pass a whole number"),
        ({"active": 70_000}, "active=70000: .*from 1 to 20000"),
        ({"tables": 2.5}, "tables=2.5: pass a whole number"),
        ({"codes": "3"}, "codes='3': pass a whole number"),
        ({"codes": True}, "codes=True: pass a whole number"),
        ({"codes": 256, "tables": 257}, "256 codes in each of 257 tables: .*65,536"),
    ],
)
def test_settings_that_cannot_be_meant(settings, message):
    with pytest.raises(ValueError, match=message):
        slide(**settings)
