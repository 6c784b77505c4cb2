"""Rollback of a run: what a mark copies, and what an undo restores."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_runs import runs_of
from small_runs import strategy

from hetjax.engine.loop import Loop
from hetjax.engine.rollback import frozen
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer
from hetjax.runtimes.openers import open_runtime


class Counter:
    """A part's state that changes in place."""

    def __init__(self, value):
        self.value = value


def test_what_is_frozen_does_not_change():
    values = {"a": [1, 2], "b": deque([Counter(3)]), "c": np.arange(3)}
    restored = frozen(values)
    values["a"].append(9)
    values["b"][0].value = 9
    values["c"][0] = 9
    for _ in range(2):  # and what came back may change, too
        found = restored()
        assert found["a"] == [1, 2]
        assert found["b"][0].value == 3
        assert found["c"].tolist() == [0, 1, 2]
        found["b"][0].value = 9
        found["c"][:] = 9


def test_two_names_of_one_object_stay_one():
    counter = Counter(3)
    one, other = frozen((counter, [counter]))()
    assert one is other[0]


def test_arrays_of_jax_are_kept_and_not_copied():
    array = jnp.arange(4)
    found = frozen({"x": (array, [array])})()
    assert found["x"][0] is array
    assert found["x"][1][0] is array


@pytest.mark.parametrize("local", [False, True])
def test_random_generators_continue_identically(local):
    class Local:  # cannot be pickled
        pass

    rng = np.random.default_rng(3)
    rng.normal(size=5)
    restored = frozen((rng, Local() if local else None))
    expected = rng.normal(size=4)
    for _ in range(2):
        np.testing.assert_array_equal(restored()[0].normal(size=4), expected)


def test_classes_and_functions_of_a_user():
    class Local:
        def __init__(self):
            self.items, self.rule, self.array = [1], (lambda x: x + 1), jnp.arange(2)

    local = Local()
    restored = frozen([local])
    local.items.append(9)
    for _ in range(2):
        (found,) = restored()
        assert type(found) is Local
        assert found.items == [1]
        assert found.rule(1) == 2
        assert found.array.tolist() == [0, 1]
        found.items.append(9)


def opened(trouble):
    """The loop of a compiled run, whose marks and ways back are counted."""
    made, runs = strategy("async_sgd", 6), runs_of("mlp", trouble)
    job = runs.job("", made, 0)._replace(compiled=True)
    return Loop(made, job, open_runtime(runs.machine, made, job), lambda point: "")


@pytest.mark.parametrize("trouble", ["", "reset"])
def test_a_run_goes_back_only_behind_what_is_not_finite(trouble, monkeypatch):
    marks, undone = [], []
    mark, undo = CompiledPlayer.mark, CompiledPlayer.undo
    monkeypatch.setattr(
        CompiledPlayer, "mark", lambda self: marks.append(1) or mark(self)
    )
    monkeypatch.setattr(
        CompiledPlayer, "undo", lambda self, at: undone.append(1) or undo(self, at)
    )
    history = opened(trouble).run()
    lost = [event for event in history.events if event.what == "nan"]
    assert len(marks) >= len(history.evals)
    assert bool(undone) == bool(lost) == (trouble == "reset")
    assert len(undone) <= len(lost)


def test_a_mark_restores_the_player():
    loop = opened("")
    loop._open()
    loop._begin()
    loop._interrupted = lambda: ""
    player = loop._player
    mark = player.mark()
    before = jax.tree.map(np.asarray, player.launcher.run_state)
    rounds = list(player._collector.stretch.rounds)
    for _ in range(9):
        loop._turn()
    player._collector.launch()
    moved = jax.tree.leaves(
        jax.tree.map(
            lambda a, b: bool(np.any(a != b)), before, player.launcher.run_state
        )
    )
    assert any(moved)
    player.undo(mark)
    jax.tree.map(np.testing.assert_array_equal, player.launcher.run_state, before)
    assert player._collector.stretch.rounds == rounds
    assert player.knows_in_time
