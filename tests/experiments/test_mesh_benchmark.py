"""The benchmark of the mesh, on tiny settings: its JSON, and what it does by hand.

The numbers are not tested: they depend on the machine.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_json import printed

from experiments.benchmarks import local_sgd_peers as peers
from experiments.benchmarks import memory, mesh_manual, mesh_processes, turns

pytestmark = pytest.mark.full  # every script imports JAX and compiles
TINY = ("--seconds=0.02", "--turns=1")


def test_rounds_and_merges():
    rounds = ("--models=mlp64", "--workers=2", "--local_steps=2", "--cpu_devices=2")
    merges = ("--replicas=4", "--floats=4000,1000000000000")
    result = printed("mesh.py", "--parts=rounds,merges", *rounds, *merges, *TINY)
    assert result["devices"] == 2
    rows = result["medians"]["rounds"]
    for where, variants in {"1dev": 3, "2dev": 2}.items():
        key, row = f"rounds/mlp64/{where}", rows[f"mlp64/{where}"]
        by_hand = [took for who, took in row.items() if who.startswith("by_hand")]
        assert len(by_hand) == variants
        ratios, best = result["ratios"], min(by_hand)
        assert ratios[key] == pytest.approx(row["mesh_us"] / best, rel=1e-2)
        feeding = min(took for who, took in row.items() if who.startswith("feeding"))
        over = row["mesh_us"] / feeding
        assert ratios[f"{key}/over_feeding"] == pytest.approx(over, rel=1e-2)
        above = row["mesh_us"] - best
        assert ratios[f"{key}/us_above"] == pytest.approx(above, abs=0.2)
        over = row["mesh_us"] / row["threads_us"]
        assert ratios[f"{key}/over_threads"] == pytest.approx(over, rel=1e-2)
    _check_peers(result)
    _check_merges(result)


def _check_peers(result):
    row = result["medians"]["rounds"]["mlp64/1dev"]
    found = [row[f"{peer}_us"] for peer in ("fedjax", "drjax")]
    installed = [took for took in found if took is not None]  # null if they are not
    ratio = result["ratios"]["rounds/mlp64/1dev/over_best_peer"]
    if installed:
        assert ratio == pytest.approx(row["mesh_us"] / min(installed), rel=1e-2)
    else:
        assert ratio is None


def _check_merges(result):
    ratios, medians = result["ratios"], result["medians"]["merges"]
    row = medians["4x0.004M"]
    moved = 2 * 4 * 4 * 4000  # bytes
    assert row["average_GB_per_s"] == pytest.approx(
        moved / row["average_us"] / 1e3, abs=1e-3
    )
    copied = min(row["copy_us"], row["copy_in_place_us"])
    assert ratios["merges/4x0.004M"] == pytest.approx(
        copied / row["average_us"],
        rel=1e-2,
        abs=5.1e-4,  # it has three decimals
    )
    row = medians["2dev/0.004M"]
    assert ratios["merges/2dev/0.004M/psum_over_gathered"] == pytest.approx(
        row["psum_us"] / row["gathered_us"], rel=1e-2
    )
    # no host has memory for these
    assert "GB are free" in medians["4x1e+06M"]["skipped"]
    assert "GB are free" in medians["2dev/1e+06M"]["gathered"]["skipped"]
    assert ratios["merges/4x1e+06M"] is None
    assert ratios["merges/2dev/1e+06M/psum_over_gathered"] is None


@pytest.mark.full
def test_overhead():
    result = printed("mesh.py", "--parts=overhead", "--step_ms=0.02", *TINY)
    row = result["medians"]["overhead"]["0.02ms"]
    bare = min(row["by_hand_fused_us"], row["by_hand_unrolled_us"])
    added = row["mesh_us"] / bare - 1
    assert result["ratios"] == {"overhead/0.02ms": pytest.approx(added, abs=1e-2)}


def test_one_process():
    flags = ("--processes=1", "--hidden=4", "--workers=1")
    result = printed("mesh.py", "--parts=processes", *flags, *TINY)
    assert result["ratios"] == {}
    row = result["medians"]["processes"]["4/1"]
    assert row["processes"] == row["devices"] == 1
    assert row["floats"] == 64 * 4 + 4 + 4 * 10 + 10
    assert row["rounds_per_s"] > 0
    assert row["merge_s"] > 0


@pytest.mark.parametrize("variant", mesh_manual.VARIANTS)
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_rounds_by_hand_are_local_sgd(devices, variant):
    setting = mesh_manual.Setting(workers=4, steps=3, batch_size=8)
    data = peers.make_data("mlp64", seed=0)
    (batches,) = mesh_manual.make_batches(data, setting, number=1)
    params = peers.MODELS["mlp64"][0](jax.random.key(0))
    replicas = [_steps(params, *own) for own in zip(*batches, strict=True)]
    expected = jax.tree.map(lambda *ws: np.mean(ws, axis=0), *replicas)
    run, where, everywhere = mesh_manual.programs(
        "mlp64", setting, jax.devices()[:devices], variant
    )
    params = jax.device_put(params, everywhere)
    after, losses = run(params, jax.device_put(batches, where))
    assert losses.shape == (4,)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)  # float32, another order


def _steps(params, x_TxBxF, y_TxB):
    grad = jax.grad(peers.loss_of("mlp64"))
    for x, y in zip(x_TxBxF, y_TxB, strict=True):
        g = grad(params, jnp.asarray(x), jnp.asarray(y))
        params = jax.tree.map(lambda w, d: w - peers.RATE * d, params, g)
    return params


def test_rounds_get_batches_of_their_own():
    setting = mesh_manual.Setting(workers=2, steps=2, batch_size=4)
    data = peers.make_data("mlp64", seed=0)
    drawn = mesh_manual.make_batches(data, setting, number=3)
    images = np.concatenate([x.reshape(-1, 64) for x, _ in drawn])
    assert len(np.unique(images, axis=0)) > len(images) / 2


def test_usual_gap_leaves_out_the_first_two_rounds():
    assert turns.usual_gap([0, 9, 19, 20, 21], window=1) == 1


def test_usual_gap_of_rounds_whose_ends_are_seen_in_pairs():
    times = [0, 0, *(2 * (k // 2) for k in range(40))]
    assert turns.usual_gap(times) == 1
    assert turns.usual_gap(times[:4], window=1) == 0  # as these two would be


def test_memory():
    assert memory.misfit(1, jax.devices()) == ""
    assert memory.misfit(10**18, jax.devices()).startswith("needs 1000000000.0 GB")


def test_ratios_of_processes():
    found = {
        "16/1": {"rounds_per_s": 10.0},
        "16/2": {"rounds_per_s": 15.0},
        "16/4": {"failed": "4 processes ended with 1"},
        "32/2": {"rounds_per_s": 15.0},
    }
    expected = {"processes/16/2": 1.5, "processes/16/4": None, "processes/32/2": None}
    assert mesh_processes.ratios(found) == expected
