"""SLIDE's output layer: active labels, loss against NumPy, and the rebuilds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import quick
from softmax_oracle import SHARES, Problem, close

from hetjax import softmax, sparse
from hetjax.output import candidates, slide
from hetjax.output.hashing import HASHES, Hashing, Tables
from hetjax.output.slide import BUCKET_SIZE, PRESETS, RANGE_BITS, _distinct

LABELS = 50
KEY = jax.random.key(5)
SETTINGS = {"codes": 2, "tables": 4, "active": 12}


def layer_of(**settings):
    return slide(**{**SETTINGS, **settings})(np.ones(LABELS))


def spied(monkeypatch):
    """of(function): jitted, it returns its result and the candidates that it saw."""
    seen, original = [], candidates._scored

    def spy(h, w, b, targets, chosen):
        seen.append(chosen)
        return original(h, w, b, targets, chosen)

    monkeypatch.setattr(candidates, "_scored", spy)

    def of(function):
        return jax.jit(lambda *given: (function(*given), seen.pop()))

    return of


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("kind", SHARES)
def test_loss_and_gradients_over_the_active_labels(hash, kind, monkeypatch):
    p = Problem(kind=kind, labels=LABELS)
    layer, of = layer_of(hash=hash), spied(monkeypatch)
    state = jax.jit(layer.init)(p.arrays[1], KEY)
    (losses, dh, dw, db, _), chosen = of(layer.loss_and_grads)(
        *p.arrays, state, p.targets, jnp.asarray(p.scale), KEY
    )
    active = p.t > 0
    for row, ids in zip(active, chosen.ids, strict=True):
        row[np.asarray(ids)] = True
    expected = p.expected(np.where(active, 0.0, np.inf))
    for found, other in zip((losses, dh), expected[:2], strict=True):
        close(found, other)
    for found, other in zip((dw, db), expected[2:], strict=True):
        close(sparse.dense(found), other)
    touched = np.abs(np.asarray(sparse.dense(dw))).sum(1) > 0
    assert not touched[~active.any(0)].any()


@pytest.mark.parametrize("together", quick([1, 4], 4))
def test_examples_may_be_taken_in_blocks_of_any_size(together, monkeypatch):
    """Of six examples, the second block of four has two."""
    p = Problem(kind="several", labels=LABELS)
    layer = layer_of()
    state = jax.jit(layer.init)(p.arrays[1], KEY)

    def found():
        given = *p.arrays, state, p.targets, jnp.asarray(p.scale), KEY
        # a new function each time, or what is compiled already would be used
        losses, dh, dw, db, _ = jax.jit(lambda *a: layer.loss_and_grads(*a))(*given)
        return losses, dh, sparse.dense(dw), sparse.dense(db)

    whole = found()
    monkeypatch.setattr(candidates, "AT_ONCE", together * 12 * p.arrays[0].shape[1])
    for one, other in zip(found(), whole, strict=True):
        close(one, other)


@pytest.mark.parametrize("hash", quick(HASHES, "dwta"))
def test_active_labels_are_what_the_tables_hold_and_arbitrary_others(hash, monkeypatch):
    p = Problem(kind="none", labels=LABELS)
    layer, of = layer_of(hash=hash, active=LABELS), spied(monkeypatch)
    state = jax.jit(layer.init)(p.arrays[1], KEY)
    _, chosen = of(layer.losses)(*p.arrays, state, p.targets, KEY)
    for ids in np.asarray(chosen.ids):
        assert sorted(ids) == list(range(LABELS))
    _, few = of(layer_of(hash=hash).losses)(*p.arrays, state, p.targets, KEY)
    hashing = Hashing(hash, 2, 4, RANGE_BITS)
    buckets = hashing.buckets(p.arrays[0], jax.random.fold_in(KEY, 0))
    tables = Tables(state["labels"], state["starts"])
    labels, counts = tables.found(buckets, BUCKET_SIZE, 24)
    for ids, row, n in zip(few.ids, np.asarray(labels), counts, strict=True):
        found, taken = set(row[:n]), set(np.asarray(ids))
        assert len(taken) == 12
        assert found <= taken or taken <= found  # fewer than 12, or more


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


@pytest.mark.parametrize("preset", quick(PRESETS, "paper"))
def test_as_many_active_labels_as_there_are_is_the_full_softmax(preset):
    """Even if all tables find the same few labels."""
    p = Problem(labels=LABELS)
    h, w, b = p.arrays
    w = 0.1 * w + w[:1]  # rows, and inputs, of nearly one direction
    h = jnp.broadcast_to(h[:1], h.shape)
    layer = slide(preset=preset, active=1000)(np.ones(LABELS))
    state = jax.jit(layer.init)(w, KEY)
    losses, _ = jax.jit(layer.losses)(h, w, b, state, p.targets, KEY)
    close(losses, softmax.cross_entropy(h, w, b, p.targets, LABELS))


def test_examples_without_hits_get_different_labels(monkeypatch):
    """With empty tables, each takes another part of the list."""
    p = Problem(kind="none", labels=LABELS, size=3)
    layer, of = layer_of(active=20), spied(monkeypatch)
    state = jax.jit(layer.init)(p.arrays[1], KEY)
    state = {**state, "starts": jnp.zeros_like(state["starts"])}
    _, chosen = of(layer.losses)(*p.arrays, state, p.targets, KEY)
    assert all(len(set(map(int, ids))) == 20 for ids in chosen.ids)
    assert len({tuple(map(int, ids)) for ids in chosen.ids}) == 3


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
    states = [state]
    for k in range(number):
        states.append(step(moved(w, k), states[-1]))
    return states


def moved(w, k):
    """The weights before step k: they move, also between rebuilds."""
    return w + 0.5 * k * jax.random.normal(jax.random.key(1), w.shape)


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
    w = Problem(labels=LABELS).arrays[1]
    layer = layer_of(rebuild_every=4, rebuild_decay=decay, renew_every=2)
    states = steps_of(layer, 21, w)
    # the step after k others sees the rebuild that is due after k
    due = [k for k in range(21) if states[k + 1]["rebuilds"] > states[k]["rebuilds"]]
    assert due == rebuilds
    for k in range(21):
        same = all(
            (np.asarray(states[k][name]) == states[k + 1][name]).all()
            for name in ("labels", "starts")
        )
        assert same == (k not in rebuilds)
    assert int(states[-1]["steps"]) == 21
    # the tables are of the weights at the rebuild; each second one has new functions
    hashing = Hashing("dwta", 2, 4, RANGE_BITS)
    for k, generation in ((rebuilds[0], 0), (rebuilds[1], 1)):
        expected = Tables.of(moved(w, k), hashing, jax.random.fold_in(KEY, generation))
        np.testing.assert_array_equal(states[k + 1]["labels"], expected.labels)


def test_the_state_is_not_taken_for_statistics():
    """Floats would be averaged by merges, and batches would not be padded."""
    state = jax.jit(layer_of().init)(jnp.ones((LABELS, 5)), KEY)
    assert not any(jnp.issubdtype(x.dtype, jnp.floating) for x in state.values())


def test_a_rebuild_that_is_far_away_comes_once():
    """Numbers of steps have 32 bits, and e^20 times 50 has more."""
    w = Problem(labels=LABELS).arrays[1]
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
        state = jax.jit(layer.init)(jnp.ones((LABELS, 16)), KEY)
        assert state["labels"].shape == (chosen["tables"], LABELS)
        assert int(state["next"]) == 50


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
        ({"rebuild_decay": float("inf")}, "rebuild_decay=inf: .*number from 0 on"),
        ({"rebuild_every": 10**10}, "rebuild_every=10000000000: .*at most 1,073,741"),
        ({"active": 2.5}, "active=2.5: give a whole number"),
        ({"active": 70_000}, "active=70000: .*at most 20,000"),
        ({"tables": 2.5}, "tables=2.5: give a whole number"),
        ({"codes": "3"}, "codes='3': give a whole number"),
        ({"codes": True}, "codes=True: give a whole number"),
        ({"codes": 256, "tables": 257}, "256 codes in each of 257 tables: .*65,536"),
    ],
)
def test_settings_that_cannot_be_meant(settings, message):
    with pytest.raises(ValueError, match=message):
        slide(**settings)
