"""Every strategy with every output layer, on the virtual clock and on threads."""

import functools

import chex
import jax
import numpy as np
import pytest
import small_layers
from quick import quick
from small_layers import DATA
from zoo import FORMS, WAYS, make

import hetjax as hj
from hetjax import output
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.machine import preset
from hetjax.tracing.fingerprint import digest

LAYERS = {"full": "full", **small_layers.LAYERS}
# that every strategy takes part and every layer several times is enough; slide's
# programs take XLA the longest
TURNS = 2 * ("chunked", "sampled") + ("slide",)
PAIRS = [("adaptive_sgd", "chunked")] + [
    (name, TURNS[k % 5]) for k, name in enumerate(FORMS) if name != "adaptive_sgd"
]
SOME = [(name, TURNS[k % 5]) for k, name in enumerate(WAYS)]
BAR = ProgressBar(1.0, shown=False)


@functools.cache
def session(layer, real=False):
    """All strategies share the programs of a layer."""
    task = hj.classification(hj.models.sparse_mlp(hidden=4), DATA, output=LAYERS[layer])
    if not real:
        machine = preset("uniform:3", noise=0.0)
        return Session(task, DATA, machine, RunConfig(seconds=0.03, num_evals=2))
    names = ["cpu:0", "cpu:1", "cpu:2"]
    machine = hj.local_machine(names, slowdown=(1, 1, 2), step_mode="dispatch")
    return Session(
        task, DATA, machine, RunConfig(seconds=60.0, num_evals=600, epochs=3)
    )


@functools.cache
def simulated(name, layer):
    return session(layer).run(name, make(name, 4), 0, BAR)


@pytest.mark.parametrize(
    ("name", "layer"),
    quick(PAIRS, ("adaptive_sgd", "chunked")),
)
def test_on_the_clock(name, layer):
    history = simulated(name, layer)
    assert history.merges > 1
    assert history.evals[-1]["examples"] > 20
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(history.params))
    if layer == "chunked":
        chex.assert_trees_all_close(
            history.params, simulated(name, "full").params, rtol=0, atol=1e-5
        )
    else:
        start = history.evals[0]["loss"]
        assert history.evals[-1]["loss"] < start


@pytest.mark.full  # a recorded run and its replay for each
@pytest.mark.parametrize(("name", "layer"), SOME)
def test_on_threads(name, layer):
    """A recorded run is replayed to the same parameters."""
    here = session(layer, real=True)
    history = here.run(name, make(name, 4), 0, BAR)
    assert "as asked" in history.stopped
    trace = history.trace.load()
    again = here.with_machine(trace).run(name, make(name, 4), 0, BAR)
    assert digest(again.params) == trace.end["params"]
    chex.assert_trees_all_equal(again.params, history.params)


@pytest.mark.full
def test_every_worker_rebuilds_its_own_tables():
    """Merges leave them alone; those of the merged model stay the first ones."""
    task = hj.classification(
        hj.models.sparse_mlp(hidden=4),
        DATA,
        output=output.slide(codes=1, tables=3, active=4, rebuild_every=10**6),
    )
    never = Session(
        task, DATA, preset("uniform:3", noise=0.0), RunConfig(seconds=0.03, num_evals=2)
    )
    strategy = make("local_sgd", 4)
    one, other = simulated("local_sgd", "slide"), never.run("never", strategy, 0, BAR)
    assert one.merges == other.merges > 3
    first, last = one.params["kernel_out"], other.params["kernel_out"]
    assert not np.array_equal(first, last)
    for history in (one, other):
        assert int(history.model_state.output["rebuilds"]) == 0


def test_slide_trains_on_one_worker():
    history = session("slide").run("slide", hj.slide(batch_size=4), 0, BAR)
    assert [w.updates > 0 for w in history.workers] == [True, False, False]
    again = session("slide").run("slide", hj.slide(batch_size=4), 0, BAR)
    chex.assert_trees_all_equal(again.params, history.params)
    assert history.evals[-1]["loss"] < history.evals[0]["loss"]


@pytest.mark.parametrize("layer", ["full", "chunked", "sampled"])
def test_slide_needs_its_output_layer(layer):
    task = session(layer).programs.task
    options = {"seconds": 0.01, "progress": False}
    message = f"slide needs a task.*as 'slide', not as '{layer}'"
    with pytest.raises(ValueError, match=message):
        hj.train(task, DATA, preset("uniform:2"), hj.slide(batch_size=4), **options)
    strategies = {"slide": hj.slide(batch_size=4)}
    with pytest.raises(ValueError, match=message):
        hj.compare(task, DATA, preset("uniform:2"), strategies, **options)
