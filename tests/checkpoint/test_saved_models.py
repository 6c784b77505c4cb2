"""Models of kept runs: saved, loaded, and refused."""

import jax
import numpy as np
import pytest
from small_runs import at, problem, send, train

import hetjax as hj
from hetjax.checkpoint import saved_models


def test_models_are_saved_and_loaded(tmp_path):
    history, p = train(tmp_path / "run"), problem()
    history.save_model(tmp_path / "model")
    x = p.data.test.x
    for path in ("run", "model"):
        loaded = hj.load_model(tmp_path / path, p.task)
        assert np.array_equal(loaded(x), history.model(x))
    history.save_model(tmp_path / "best", best=True)
    best = hj.load_model(tmp_path / "best", p.task)
    right = np.argmax(best(x), -1) == p.data.test.y
    assert np.mean(right) == pytest.approx(history.best())
    of_run = hj.load_model(tmp_path / "run", p.task, best=True)
    assert np.array_equal(of_run(x), best(x))


def test_the_models_of_an_interrupted_run(tmp_path):
    p = problem()
    history = train(tmp_path, on_eval=at(5, send("SIGTERM")))
    x = p.data.test.x
    with pytest.raises(ValueError, match="an unfinished run: resume it"):
        hj.load_model(tmp_path, p.task)
    best = hj.load_model(tmp_path, p.task, best=True)
    assert np.mean(np.argmax(best(x), -1) == p.data.test.y) == pytest.approx(
        history.best()
    )


def test_models_that_cannot_be_saved_or_loaded(tmp_path):
    history, p = train(), problem()
    with pytest.raises(ValueError, match="only a run with train.checkpoint"):
        history.save_model(tmp_path / "best", best=True)
    history.save_model(tmp_path / "model")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        history.save_model(tmp_path / "model")
    history.save_model(tmp_path / "model", overwrite=True)
    other = hj.classification(hj.models.mlp(hidden=7), p.data)
    with pytest.raises(ValueError, match=r"params/layers/0/bias is float32\[5\] there"):
        hj.load_model(tmp_path / "model", other)
    with pytest.raises(ValueError, match="best=True is for the folder of a run"):
        hj.load_model(tmp_path / "model", p.task, best=True)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        hj.load_model(tmp_path / "nowhere", p.task)


def test_arrays_of_a_history_are_those_of_jax(tmp_path):
    train(tmp_path)
    again = train(tmp_path)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(again.params))


ONE, TWO = np.arange(2.0), np.ones(3)
TREES = {
    "one name": {"a/b": ONE, "a": {"b": TWO}},
    "one inside another": {"a/b": ONE, "a": {"b": {"c": TWO}}},
    "no file names": {"..": ONE, ".": TWO, "": ONE, "a\\b\0": TWO},
    "long names": {"W" * 300: ONE, "W" * 301: TWO},
    "quoted names": {"%": ONE, "%25": TWO, "a//b": ONE},
}


@pytest.mark.parametrize("kind", TREES)
def test_names_that_share_a_folder_or_have_none(tmp_path, kind):
    saved_models.save(tmp_path / "model", TREES[kind], (), overwrite=False)
    found, _ = saved_models.load(tmp_path / "model", (TREES[kind], ()))
    jax.tree.map(np.testing.assert_array_equal, found, TREES[kind])


def test_a_model_may_have_the_longest_name_of_a_folder(tmp_path):
    folder = tmp_path / ("m" * 255)
    for params in (ONE, TWO):  # the second time in place of the first
        saved_models.save(folder, params, (), overwrite=True)
        np.testing.assert_array_equal(
            saved_models.load(folder, (params, ()))[0], params
        )


@jax.tree_util.register_pytree_with_keys_class
class Twins:
    def __init__(self, *both):
        self.both = both

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.DictKey("w"), each) for each in self.both], None

    @classmethod
    def tree_unflatten(cls, _, both):
        return cls(*both)


def test_arrays_with_one_path_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two arrays .* have the path params/w: the"):
        saved_models.save(tmp_path / "model", Twins(ONE, TWO), (), overwrite=False)
    assert not (tmp_path / "model").exists()
