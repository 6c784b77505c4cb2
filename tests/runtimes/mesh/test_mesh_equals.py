"""Every strategy on every mesh equals the same strategy with simulated workers.

With one worker per device, and with all workers on one device, sums have the order that
they have on a tuple: equal bit for bit, but where XLA contracts other products and sums
(`ROUNDED`). With several workers on several devices each device adds its own first:
within 1e-6.
"""

import numpy as np
import pytest
from mesh_runs import LAYOUTS, ON_ALL, close, on_mesh, simulated
from quick import quick
from small_layers import DATA as XMC
from small_layers import LAYERS

import hetjax as hj

pytestmark = pytest.mark.usefixtures("cpu_alone")
COMMON = {"batch_size": 4, "learning_rate": 0.1}
STEPS = (4, 2, 1, 4, 1, 3, 4, 2)  # of eight workers
SIZES = (4, 2, 3, 4, 1, 4, 2, 4)
SUPERSTEPS = 5
TABLE = {  # strategy, steps of a superstep
    "sync": (hj.sync_sgd(**COMMON, server_momentum=0.5, ema=True), 1),
    "elastic": (hj.elastic_sgd(**COMMON, local_steps=2), 2),
    "local steps": (hj.local_sgd(**COMMON, local_steps=STEPS, momentum=0.5), 4),
    "biased": (hj.biased_local_sgd(**COMMON, local_steps=STEPS), 4),
    "fed_nova": (hj.fed_nova(**COMMON, local_steps=STEPS, momentum=0.5), 4),
    "fed_acc": (hj.fed_acc(**COMMON, local_steps=2), 2),
    "fed_adp": (hj.fed_adp(**COMMON, local_steps=STEPS), 4),
    "sma": (hj.sma(**COMMON), 1),
    "sma tau": (hj.sma(**COMMON, local_steps=3, momentum=0.5), 3),
    "sma two levels": (hj.sma(**COMMON, two_level=4), 1),
    "sma mean": (hj.sma(**COMMON, center="mean", merge_momentum=0), 1),
    "easgd_sync": (hj.easgd_sync(**COMMON, momentum=0.5, local_steps=2), 2),
    "hier flat": (hj.hier_sgd(**COMMON, levels=(), local_steps=(2,)), 2),
    "hier two levels": (hj.hier_sgd(**COMMON, levels=(4,), local_steps=(1, 2)), 1),
    # with two workers per device, its nodes are not whole devices
    "hier uneven": (hj.hier_sgd(**COMMON, levels=((3, 5),), local_steps=(1, 2)), 1),
    "sequential": (hj.sequential_sgd(**COMMON), 1),
}
CHOSEN = (
    "local steps",
    "biased",
    "sma tau",
    "hier two levels",
)  # tested always
ROUNDED = ("biased", "fed_nova", "fed_acc", "fed_adp", "easgd_sync")


def tolerance(name, where):
    exact = where in ("8 x 1", "1 x 8") and name not in ROUNDED
    return 0.0 if exact else 1e-6


def same(name, where, strategy, steps):
    expected = simulated(strategy, SUPERSTEPS, steps)
    # fed_acc takes time to evaluate the members
    supersteps = SUPERSTEPS if name != "fed_acc" else expected.merges
    actual = on_mesh(strategy, where, supersteps, steps)
    assert (actual.stopped, actual.merges) == ("", expected.merges)
    close(actual.params, expected.params, tolerance(name, where))
    metrics = [[p["loss"] for p in h.evals] for h in (actual, expected)]
    np.testing.assert_allclose(*metrics, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "where"),
    quick(
        [(name, where) for name in TABLE for where in LAYOUTS],
        *((name, "8 x 1") for name in CHOSEN),
        ("elastic", "1 x 8"),
        ("local steps", "4 x 2"),
    ),
)
def test_a_mesh_equals_simulated_workers(name, where):
    same(name, where, *TABLE[name])


@pytest.mark.full
@pytest.mark.parametrize("where", ON_ALL)
def test_a_tree_of_three_levels(where):
    tree = hj.hier_sgd(**COMMON, levels=(2, 2), local_steps=(1, 2, 4))
    same("hier three levels", where, tree, 1)


@pytest.mark.full
@pytest.mark.parametrize("where", ["8 x 1", "4 x 2"])
@pytest.mark.parametrize("layer", LAYERS)
def test_output_layers(layer, where):
    """Every worker has its own random draws and rebuilt tables of a layer."""
    task = hj.classification(hj.models.sparse_mlp(hidden=4), XMC, output=LAYERS[layer])
    strategy, options = hj.local_sgd(**COMMON, local_steps=2), {"task": task}
    options["data"] = XMC
    expected = simulated(strategy, SUPERSTEPS, 2, **options)
    actual = on_mesh(strategy, where, SUPERSTEPS, 2, **options)
    assert (actual.stopped, actual.merges) == ("", expected.merges)
    close(actual.params, expected.params, 1e-6)
