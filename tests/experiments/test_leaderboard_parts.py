"""Parts of the leaderboard: rates of equal effort, targets, ranks, its own tasks."""

import importlib
from math import inf, nan

import jax
import numpy as np
import pytest
from flax import nnx
from script_parts import no_scripts
from stored_cells import cell

import hetjax as hj


@pytest.fixture(scope="module")
def script():
    """Modules of the leaderboard by name; others' flags are there again at the end."""
    with no_scripts():
        yield lambda name: importlib.import_module(f"experiments.{name}")


# Rates.


def test_all_strategies_try_the_same_number_of_rates(script):
    rates = script("leaderboard_rates")
    inner, outer = (0.03, 0.1, 0.3, 1.0), (0.1, 0.3, 1.0)
    both = rates.pairs(inner, outer, has_outer=True)
    alone = rates.pairs(inner, outer, has_outer=False)
    assert len(both) == len(set(both)) == len(alone) == len(set(alone)) == 12
    assert {pair.inner for pair in both} == set(inner)
    assert {pair.outer for pair in both} == set(outer)
    own = np.array([pair.inner for pair in alone])
    np.testing.assert_allclose(np.diff(np.log10(own)), 0.25, atol=0.02)
    assert own[0] < inner[0]
    assert own[-1] > inner[-1]


@pytest.mark.parametrize(
    ("best", "more"),
    [
        ((0.3, 0.3), []),  # inside
        ((0.3, 1.0), [(0.1, 3.0), (0.3, 3.0), (1.0, 3.0)]),
        ((0.3, 0.1), [(0.1, 0.03), (0.3, 0.03), (1.0, 0.03)]),
        ((0.1, 0.3), [(0.03, 0.1), (0.03, 0.3), (0.03, 1.0)]),
        (
            (1.0, 1.0),  # a corner: both directions, and the new corner
            [(3.0, 0.1), (3.0, 0.3), (3.0, 1.0)]
            + [(0.1, 3.0), (0.3, 3.0), (1.0, 3.0), (3.0, 3.0)],
        ),
    ],
)
def test_a_grid_grows_where_its_best_pair_is_at_the_edge(script, best, more):
    rates = script("leaderboard_rates")
    tried = rates.pairs((0.1, 0.3, 1.0), (0.1, 0.3, 1.0), has_outer=True)
    assert set(rates.grown(tried, rates.Pair(*best))) == set(more)
    fixed = [rates.Pair(i, 1.0) for i in (0.1, 0.3, 1.0)]  # the only rate of a server
    assert rates.grown(fixed, rates.Pair(0.3, 1.0)) == []


def test_a_grid_without_a_servers_rate_grows_by_a_decade(script):
    rates = script("leaderboard_rates")
    tried = rates.pairs((0.1, 0.3, 1.0, 3.0), (0.1, 0.3, 1.0), has_outer=False)
    assert rates.grown(tried, tried[5]) == []
    lower = [pair.inner for pair in rates.grown(tried, tried[0])]
    assert (tried[0].inner, lower) == (0.018, [0.01, 0.0056, 0.0032, 0.0018])
    upper = [pair.inner for pair in rates.grown(tried, tried[-1])]
    assert (tried[-1].inner, upper) == (10.0, [18.0, 32.0, 56.0, 100.0])


@pytest.mark.parametrize(("grow", "chosen"), [(0, 1.0), (1, 3.0), (2, 10.0), (3, 10.0)])
def test_a_cell_grows_until_its_best_pair_is_inside(script, monkeypatch, grow, chosen):
    cells, rates = script("leaderboard_cells"), script("leaderboard_rates")
    asked = []

    def scores(cell, tried, *rest):
        asked.extend(tried)
        return [-abs(pair.outer - 9.0) - pair.inner for pair in tried], "max"

    monkeypatch.setattr(cells, "_scores", scores)
    first = rates.pairs((0.01, 0.03, 0.1), (0.3, 1.0), has_outer=True)
    wanted = {"rates": first, "seconds": 1.0}
    found, best = cells._tuned(None, wanted, cells.Effort(1, 1, grow=grow))
    assert best.outer == chosen
    assert best.inner == min(pair.inner for pair in found)
    assert list(found) == asked
    assert len(set(asked)) == len(asked)  # none twice
    assert all(found[pair] <= found[best] for pair in found)


@pytest.mark.parametrize(
    ("name", "setting"),
    [("downpour", "server_learning_rate"), ("sync_sgd", None), ("local_sgd", None)],
)
def test_a_servers_rate_is_a_setting_of_the_factory(script, name, setting):
    cells = script("leaderboard_cells")
    rates = script("leaderboard_rates")
    assert rates.outer_setting(hj.STRATEGIES[name]) == setting
    pair = rates.Pair(0.1, 0.3 if setting else None)
    made = cells.strategy_at(hj.STRATEGIES[name], 8, pair)
    assert made.settings["learning_rate"] == made.learning_rate == 0.1
    assert setting is None or made.settings[setting] == 0.3


@pytest.mark.parametrize(
    ("default", "own"),
    [
        (32, {"local_steps": 8}),
        ("measured:32", {"local_steps": "measured:8"}),
        (8, {}),
        (1, {}),
        (None, {}),
        ((4, 16), {}),
    ],
)
def test_rounds_are_short(script, default, own):
    def factory(*, batch_size, local_steps=default):
        raise AssertionError

    cells = script("leaderboard_cells")
    assert cells.short_rounds(factory, 16, 4) == own
    assert cells.short_rounds(hj.async_sgd, 16, 4) == {}
    mega_batch = {"mega_batch": 512}
    assert cells.short_rounds(hj.adaptive_sgd, 16, 4) == mega_batch
    assert cells.short_rounds(hj.elastic_sgd, 16, 4) == mega_batch
    assert cells.short_rounds(hj.fed_buff, 16, 4) == {
        "buffer_size": 4,
        "local_steps": 8,
    }


def test_workers_have_no_momentum_but_where_it_is_the_algorithm(script):
    cells = script("leaderboard_cells")
    made = {n: cells.plain_workers(make) for n, make in hj.STRATEGIES.items()}
    changed = {n: own for n, own in made.items() if own}
    assert changed == dict.fromkeys(("local_sgd", "biased_local_sgd"), {"momentum": 0})


def test_an_adaptive_server_tries_smaller_rates(script):
    rates = script("leaderboard_rates")
    assert rates.outer_rates("fed_opt", (0.1, 0.3, 1.0)) == [0.03, 0.09, 0.3]
    assert rates.outer_rates("diloco", (0.1, 0.3, 1.0)) == [0.1, 0.3, 1.0]


@pytest.mark.parametrize("name", hj.STRATEGIES)
def test_every_strategy_is_made_for_a_cell(script, name):
    cells, make = script("leaderboard_cells"), hj.STRATEGIES[name]
    rates = script("leaderboard_rates")
    pair = rates.Pair(0.1, 0.3 if rates.outer_setting(make) else None)
    own = cells.own_settings(cells.Cell("v100x4", "digits", "iid", name))
    made = cells.strategy_at(make, 32, pair, **own)
    assert made.batch_size == 32
    assert all(made.settings[setting] == value for setting, value in own.items())


# Targets and ranks.


def oracle(seconds, best, mode):
    """Ranks from all comparisons of two, with half a point for those that are level."""
    seconds, best = np.array(seconds), np.array(best)
    gains = np.nan_to_num(best if mode == "max" else -best, nan=-np.inf)
    values = np.where(np.isfinite(seconds), 1e9 - seconds, gains)
    ahead = (values[None] > values[:, None]).sum(1)
    level = (values[None] == values[:, None]).sum(1) - 1
    return 1 + ahead + level / 2


@pytest.mark.parametrize("mode", ["max", "min"])
def test_ranks_are_those_of_a_numpy_oracle(script, mode):
    ranking = script("leaderboard_ranking")
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = rng.integers(1, 9)
        seconds = rng.choice([0.5, 1.0, 2.0, inf, inf], n)
        best = rng.choice([0.3, 0.5, 0.7, nan], n)
        found = ranking.ranked(list(seconds), list(best), mode)
        np.testing.assert_array_equal(found, oracle(seconds, best, mode))
        assert sum(found) == n * (n + 1) / 2


def test_the_target_is_short_of_the_better_reference(script):
    ranking = script("leaderboard_ranking")
    low, high = [(0, 0.1), (1, 0.5)], [(0, 0.1), (1, 0.7)]
    found = {
        "sequential_sgd": cell("sequential_sgd", low, low, high, constant=0.1),
        "sync_sgd": cell("sync_sgd", low, high, high, constant=0.1),
        "async_sgd": cell("async_sgd", [(0, 0.1), (1, 1.0)]),
    }
    assert ranking.target(found) == 0.682  # 0.7 - 0.03 (0.7 - 0.1)
    del found["sync_sgd"]
    assert ranking.target(found) == 0.488
    del found["sequential_sgd"]
    assert ranking.target(found) is None
    smaller = cell("sync_sgd", [(0, 20.0), (1, 6.0)], mode="min", constant=16.0)
    assert ranking.target({"sync_sgd": smaller}) == 6.3


def test_the_ranking_of_a_place_and_of_all(script):
    ranking = script("leaderboard_ranking")
    fast, slow = [(0, 0.0), (1, 0.9), (2, 0.9)], [(0, 0.0), (1, 0.4), (2, 0.9)]
    never, worse = [(0, 0.0), (1, 0.4), (2, 0.7)], [(0, 0.0), (1, 0.4), (2, 0.6)]
    cells = {
        "a": cell("a", slow, slow, slow),
        "b": cell("b", fast, fast, never),
        "c": cell("c", worse, worse, worse),
    }
    found = ranking.entries(cells, 0.8)
    assert list(found) == ["b", "a", "c"]
    assert found["b"].ranks == (1, 1, 2)
    assert found["a"].ranks == (2, 2, 1)
    assert found["c"].ranks == (3, 3, 3)
    assert found["c"].seconds == (inf,) * 3
    np.testing.assert_allclose(found["b"].seconds[0], 0.8 / 0.9)  # interpolated
    assert found["b"].best == (0.9, 0.9, 0.7)
    other = {name: found[name] for name in "ac"}
    standings = ranking.standings({("m", "t", "iid"): found, ("m", "t", "x"): other})
    by_name = {s.strategy: s for s in standings}
    assert [s.strategy for s in standings] == ["b", "a", "c"]
    assert by_name["b"].reached == 2 / 3
    assert by_name["b"].first == 1
    assert by_name["a"].ranks == (2, 2, 1, 2, 2, 1)
    assert by_name["a"].first == 1
    low, middle, high = np.quantile([2, 2, 1, 2, 2, 1], (0.25, 0.5, 0.75))
    assert by_name["a"].quartiles == (low, middle, high)


# Its own tasks.


def test_a_text_has_languages_and_next_characters(script):
    characters = script("common.characters")
    data, languages = characters.text(train=64, test=8, seed=3)
    again, _ = characters.text(train=64, test=8, seed=3)
    np.testing.assert_array_equal(data.train.x, again.train.x)
    np.testing.assert_array_equal(data.train.x[:, 1:], data.train.y[:, :-1])
    assert data.train.x.shape == (64, 16)
    assert set(languages) == set(range(8))
    assert data.train.x.max() < characters.VOCABULARY == 27
    # sequences of one language share more letters than those of two
    counts = np.stack([np.bincount(row, minlength=26)[:26] for row in data.train.x])
    alike = (counts @ counts.T) / np.outer(*[np.linalg.norm(counts, axis=1)] * 2)
    same = languages[:, None] == languages[None]
    assert alike[same].mean() > 1.2 * alike[~same].mean()


def test_the_transformer_sees_no_later_character(script):
    characters = script("common.characters")
    build = characters.transformer(width=8, length=6)
    model = build(characters.VOCABULARY, rngs=nnx.Rngs(0))
    x = np.arange(12).reshape(2, 6)
    changed = x.copy()
    changed[:, 4] = 20
    before, after = model(x), model(changed)
    np.testing.assert_allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert (np.abs(before - after)[:, 4:].max(axis=(0, 2)) > 1e-4).all()


@pytest.mark.full
def test_sgd_learns_more_than_the_frequencies_of_characters(script):
    characters = script("common.characters")
    data, _ = characters.text()
    history = hj.train(
        characters.task(data),
        data,
        hj.machine.preset("v100x4"),
        hj.sequential_sgd(batch_size=8, learning_rate=1.0),
        seconds=0.4,
        num_evals=4,
        progress=False,
    )
    assert characters.unigram_perplexity(data) > 16
    assert history.final() < 8


def test_the_cnns_products_are_convolutions(script):
    cnn = script("common.small_cnn")
    model = cnn.small_cnn(image=(4, 4, 2), widths=(3,))(0, 5, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 4, 4, 2))
    kernel = model.kernels[0][...].reshape(3, 3, 2, 3)
    layers = ("NHWC", "HWIO", "NHWC")
    h = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=layers
    )
    h = np.maximum(h, 0).reshape(2, 2, 2, 2, 2, 3).max(axis=(2, 4))
    wanted = h.reshape(2, -1) @ model.out[...]
    np.testing.assert_allclose(model(x), wanted, atol=1e-5)


def test_a_cut_averages_pixels_of_images_from_all_over(script):
    cnn = script("common.small_cnn")
    x = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 3))
    x = (25 * x).astype(np.uint8)
    data = hj.data.from_arrays((x, np.arange(10)), (x[:5], np.arange(5)))
    found = cnn.cut(data, train=4, test=9)
    assert found.train.x.shape == (4, 2, 2, 3)
    assert len(found.test) == 5
    np.testing.assert_array_equal(found.train.y, [0, 3, 6, 9])
    wanted = 4 * 25 * found.train.y / 255 - 2
    np.testing.assert_allclose(found.train.x[:, 0, 0, 0], wanted, rtol=1e-5)
