"""Benchmarks of simulated and real runs, on tiny settings: the JSON that they promise.

The numbers are not tested: they depend on the machine.
"""

import json
import math

import numpy as np
import pytest
from benchmark_json import printed

pytestmark = pytest.mark.full  # every script imports JAX and compiles
CHOSEN = ("local_sgd", "eamsgd")  # one of each kind
ASYNCHRONOUS = ("async_sgd", "easgd")


def test_overhead():
    result = printed("overhead.py", "--step_ms=0.1", "--seconds=0.2", "--turns=1")
    ratios, medians = result["ratios"], result["medians"]
    assert list(ratios) == ["rounds/0.1ms", "chosen/0.1ms", "arrival_us"]
    assert list(medians) == ["rounds/0.1ms", *ASYNCHRONOUS]
    rounds = medians["rounds/0.1ms"]
    for key, who in (("rounds", "hetjax"), ("chosen", "chosen")):
        added = rounds[f"{who}_us"] / rounds["bare_us"] - 1
        assert ratios[f"{key}/0.1ms"] == pytest.approx(added, abs=1e-2)
    above = [medians[k]["hetjax_us"] - medians[k]["bare_us"] for k in ASYNCHRONOUS]
    assert ratios["arrival_us"] == pytest.approx(max(above), abs=0.2)


def test_arrivals():
    result = printed("arrivals.py", "--seconds=1")
    for case in ("arrival", "round"):
        found = result[case]
        assert found["passes"] > 0
        assert {"policy", "merge", "launch a step"} <= set(found["parts"])
        # medians of parts do not sum to the median of passes
        assert sum(found["parts"].values()) == pytest.approx(found["us"], rel=0.5)


def test_real(tmp_path):
    flags = ("--hidden=32", "--seconds=0.5", "--runs=1")
    chosen = f"--strategies={','.join(CHOSEN)}"
    result = printed("real.py", *flags, chosen, f"--out={tmp_path}")
    ratios, measured = result["ratios"], result["measured"]
    assert set(measured) == set(result["advised"]) == {*CHOSEN, "alone"}
    for name in CHOSEN:
        row = measured[name]
        low, high = sorted((row["least"], row["most"]))
        error = max(0, low / row["measured"] - 1, 1 - high / row["measured"])
        assert ratios[f"prediction_error/{name}"] == pytest.approx(error, abs=1e-3)
        assert ratios[f"range/{name}"] == pytest.approx(high / low, abs=1e-3)
        assert 0 < ratios[f"waiting/{name}"] < 1
        assert ratios[f"replay/{name}"] == 1
        assert ratios[f"advice/{name}"] > 0
        assert f"time_to_target/{name}" in ratios
        assert (tmp_path / f"{name}.png").stat().st_size > 0
        assert json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"]
    assert result["calibration"]["contention"].keys() == {"cpu:0", "cpu:1"}


def test_learners(tmp_path):
    """LeNet's speed, and its time to an accuracy of 0, which it has at once."""
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]:
        records = rng.integers(0, 10, (4, 3073), dtype=np.uint8)
        (tmp_path / name).write_bytes(records.tobytes())
    result = printed(
        *("learners.py", f"--data={tmp_path}", "--models=lenet", "--batch_sizes=2"),
        *("--learners=2", "--ways=dispatch", "--seconds=0.02", "--turns=1"),
        *(
            "--target=0",
            "--target_model=lenet",
            "--target_batch=2",
            "--rates=0.01",
            "--longest=0.1",
        ),
    )
    speeds, reached = result["images_per_second"]["lenet, 2"], result["ratios"]
    assert list(speeds) == ["sync_sgd, 1", "sma, 2, dispatch"]
    ratio = speeds["sma, 2, dispatch"] / speeds["sync_sgd, 1"]
    assert reached["images/s, lenet, 2, 2 learners"] == pytest.approx(ratio, abs=2e-3)
    assert list(result["seconds_to_target"].values()) == [0.0, 0.0]


def test_local_sgd():
    result = printed("local_sgd.py", "--models=mlp", "--rounds=1")
    speeds = result["replica_steps_per_s"]["mlp"]
    by_hand = [speeds[f"jax_{v}"] for v in ("scan", "unrolled", "dispatch")]
    peers = ("fedjax", "drjax", "torch_1_thread", "torch_2_threads")
    assert list(speeds)[4:] == list(peers)  # null if they are not installed
    installed = [speeds[peer] for peer in peers if speeds[peer] is not None]
    assert all(speed > 0 and math.isfinite(speed) for speed in by_hand + installed)
    ratio = speeds["hetjax"] / max(by_hand)
    assert result["ratios"]["mlp/hetjax_over_jax"] == pytest.approx(ratio, rel=1e-2)
    ratio = result["ratios"]["mlp/hetjax_over_best_peer"]
    if installed:
        assert ratio == pytest.approx(speeds["hetjax"] / max(installed), rel=1e-2)
    else:
        assert ratio is None


def test_virtual():
    """Both ways by hand compute the same thing: the script itself checks it."""
    names = {"async_sgd": True, "local_sgd": True, "hier_sgd": False}  # by hand, too?
    chosen = f"--strategies={','.join(names)}"
    result = printed("virtual.py", "--updates=64", "--turns=1", chosen, "--grid=2")
    found, ratios = result["us_per_update"], result["ratios"]
    assert list(found) == list(ratios) == ["digits", "digits64"]
    for job, took in found.items():
        one, two = took["grid"].values()
        expected = {"2 runs / one": pytest.approx(two / one, rel=1e-2, abs=1e-2)}
        assert ratios[job]["grid"] == expected
        assert list(took) == list(ratios[job]) == [*names, "grid"]
        for name, by_hand in names.items():
            others = ["dispatch", "scan"] if by_hand else []
            us = took[name]
            assert list(us) == ["compiled", "reference", *others, "writing"]
            assert all(took > 0 and math.isfinite(took) for took in us.values())
            expected = {"reference / compiled": us["reference"] / us["compiled"]}
            if by_hand:
                expected["compiled / scan"] = us["compiled"] / us["scan"]
            assert ratios[job][name] == pytest.approx(expected, rel=1e-2, abs=1e-2)


def test_models():
    flags = ("--models=resnet32", "--batch_size=2", "--turns=1", "--seconds=0.01")
    result = printed("models.py", *flags, "--memory")
    row = result["models"]["resnet32"]
    assert row["batch_size"] == 2
    assert row["hetjax_per_s"] > 0
    assert row["step_gflops"] > 0
    assert min(row["step_bytes_with_remat"], row["step_bytes"]) > 0
    if row["torch_per_s"] is None:  # it is not installed
        assert result["ratios"] == {"resnet32": None}
    else:
        ratio = row["hetjax_per_s"] / row["torch_per_s"]
        assert result["ratios"]["resnet32"] == pytest.approx(ratio, rel=1e-2)


def test_mega_batch():
    sizes = {"rows": 500, "features": 400, "labels": 300}
    flags = [f"--{name}={size}" for name, size in sizes.items()]
    result = printed("mega_batch.py", *flags, "--batch_size=4", "--seconds=0.05")
    assert sizes.items() <= result.items()
    assert result["updates"] <= result["examples"] <= 4 * result["updates"]
    ratio = result["seconds"] / 0.05
    assert result["ratios"]["wall_over_virtual"] == pytest.approx(ratio, rel=2e-2)
    assert 0 <= result["p@1"] <= 1


def test_pipeline():
    result = printed("pipeline.py", "--images=128", "--seconds=0.05")
    read, in_memory = result["source_read_s"], result["source_in_memory_s"]
    assert result["ratios"]["source"] == pytest.approx(read / in_memory)
    assert in_memory > 0
    speeds = result["augment_images_per_s"]
    assert {"cifar10", "imagenet", "flowers102", "tiny_imagenet"} <= set(speeds)
    rest = [
        result[f"{part}_images_per_s"] for part in ("decode", "feed", "run", "step")
    ]
    assert all(
        speed > 0 and math.isfinite(speed) for speed in (*speeds.values(), *rest)
    )
    busy = result["run_images_per_s"] / result["step_images_per_s"]
    assert result["ratios"]["device_busy"] == pytest.approx(busy)
