"""Machine presets: the papers' numbers, and unknown names."""

import math

import pytest

from hetjax.machine import PRESETS, Machine, like_amazon670k, load_machine, preset


def test_v100_costs():
    worker = preset("v100x1").workers[0]
    # 0.75 * 256 * 1e-5: the fixed cost is 3/4 of the cost of 256 examples
    assert worker.cost.fixed == pytest.approx(1.92e-3)
    assert (worker.cost.per_example, worker.cost.per_nonzero) == (1e-5, 2e-8)
    assert (worker.kind, worker.factor) == ("v100", 1.0)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("v100x4", [1, 1.107, 1.213, 1.32]),
        ("v100x2", [1, 1.32]),
        ("v100x1", [1]),
        ("uniform:3", [1, 1, 1]),
    ],
)
def test_v100_factors(name, factors):
    machine = preset(name)
    assert [worker.factor for worker in machine.workers] == factors
    assert machine.name == name
    # PCIe: 2 * 20 us, and one copy of 1 GB at 10 GB/s between two members
    assert machine.links[""].seconds(2, 1e9) == pytest.approx(0.1 + 40e-6)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("v100x4-amazon670k", [1, 1.107, 1.213, 1.32]),
        ("v100x2-amazon670k", [1, 1.32]),
        ("v100x1-amazon670k", [1]),
    ],
)
@pytest.mark.parametrize(("batch_size", "num_bytes"), [(1024, None), (37, 2.5e6)])
def test_amazon_670k(name, factors, batch_size, num_bytes):
    """62 ms for a merge of four, 112 ms for the slowest card's step, in any scale."""
    if num_bytes is None:
        machine, num_bytes = preset(name), 103.17e6 * 4
    else:
        machine = like_amazon670k(name, batch_size=batch_size, num_bytes=num_bytes)
    assert [worker.factor for worker in machine.workers] == factors
    steps = [w.seconds(batch_size) for w in machine.worker_infos(0.0)]
    assert steps[0] == pytest.approx(3e-3 + 1024 * 80e-6)
    assert steps[-1] == pytest.approx(factors[-1] * 0.08492)
    assert machine.links[""].topology == "ring"
    assert machine.links[""].seconds(4, num_bytes) == pytest.approx(0.062, abs=5e-4)
    if len(factors) == 4:
        assert steps[-1] == pytest.approx(0.112, abs=5e-4)


def test_slide_is_a_cpu_that_is_scaled_too():
    (worker,) = preset("slide-amazon670k").workers
    assert worker.kind == "cpu"
    # 3.5 times as fast as the V100 with batches of 256: 3 ms + 20.48 ms
    assert 256 * worker.cost.per_example == pytest.approx(0.02348 / 3.5, rel=5e-3)
    small = like_amazon670k("slide-amazon670k", batch_size=64, num_bytes=1e6)
    assert small.workers[0].cost.seconds(64) == pytest.approx(worker.cost.seconds(1024))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "v100x4"}, "'v100x4' cannot be scaled; these can: v100x4-amazon"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_bytes": -1.0}, "num_bytes=-1.0"),
        ({"batch_size": "8"}, "batch_size='8': pass a number above 0"),
        ({"batch_size": math.inf}, "batch_size=inf: pass a number above 0"),
        ({"num_bytes": True}, "num_bytes=True: pass a number above 0"),
    ],
    ids=["name", "batch size", "bytes", "text", "infinite", "no number"],
)
def test_what_cannot_be_scaled(changes, message):
    settings = {"name": "v100x4-amazon670k", "batch_size": 8, "num_bytes": 1e6}
    with pytest.raises(ValueError, match=message):
        like_amazon670k(**{**settings, **changes})


def test_an_old_card_beside_three_new_ones():
    machine = preset("v100x3+k80")
    seconds = [worker.seconds(32) for worker in machine.worker_infos(0.0)]
    new, old = 2.24e-3, 3.59 * 2.24e-3  # 1.92 ms + 32 * 10 us
    assert seconds == pytest.approx([new, new, new, old])
    assert [worker.kind for worker in machine.workers] == ["v100"] * 3 + ["k80"]
    assert machine.links[""] == preset("v100x4").links[""]


def test_gpu_and_cpu_have_the_seconds_of_the_paper():
    gpu, cpu = preset("rtx4090+epyc7543").worker_infos(0.0)
    assert gpu.seconds(128) == pytest.approx(0.1940)
    assert cpu.seconds(128) == pytest.approx(6.5230)
    assert (gpu.kind, cpu.kind) == ("rtx4090", "epyc7543")


def test_lognormal_speeds_are_always_the_same():
    machine = preset("lognormal32")
    factors = [worker.factor for worker in machine.workers]
    assert len(set(factors)) == 32
    assert factors == [w.factor for w in preset("lognormal32", seed=5).workers]
    logs = [math.log(factor) for factor in factors]
    # sigma 0.5: within two standard errors of a mean of 0 and a deviation of 0.5
    mean = sum(logs) / 32
    assert mean == pytest.approx(0.0, abs=2 * 0.5 / math.sqrt(32))
    deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / 31)
    assert deviation == pytest.approx(0.5, abs=2 * 0.5 / math.sqrt(62))
    assert {w.cost for w in machine.workers} == {preset("v100x1").workers[0].cost}
    # 1 Gbit/s: one copy of 125 MB between two members takes a second
    assert machine.links[""].seconds(2, 125e6) == pytest.approx(1.0, abs=1e-3)


def test_four_speeds_have_the_published_seconds():
    infos = preset("four-speeds").worker_infos(0.0)
    seconds = [info.seconds(32) for info in infos]
    assert seconds == pytest.approx([0.58, 0.75, 1.51, 3.33])
    assert infos[3].seconds(64) == pytest.approx(6.66)


def test_churn_is_v100x4_whose_workers_leave_and_join():
    machine, same = preset("v100x4-churn"), preset("v100x4")
    assert (machine.workers, machine.links) == (same.workers, same.links)
    away = dict.fromkeys(("gpu1", "gpu2", "gpu3"), 0.0)
    since = {}
    for fault in machine.faults:
        if fault.what == "kill":
            since[fault.worker] = fault.seconds
        else:
            away[fault.worker] += fault.seconds - since.pop(fault.worker)
    assert not since  # all of them come back
    assert away == {"gpu1": 15.0, "gpu2": 15.0, "gpu3": 30.0}  # of a minute
    assert max(fault.seconds for fault in machine.faults) == 59.75


def test_minsky_has_32_nodes_of_4():
    machine = preset("minsky32x4")
    assert len(machine.workers) == 128
    assert machine.workers[0].name == "node00/gpu0"
    assert machine.workers[127].name == "node31/gpu3"
    assert machine.workers[127].place == ("node31",)
    within, between = machine.link_of((4, 5, 6, 7)), machine.link_of((3, 4))
    assert (within, between) == ("node01", "")
    # two members: 2 latencies and one copy, of 1.2 GB
    assert machine.links[within].seconds(2, 1.2e9) == pytest.approx(0.03 + 20e-6)
    assert machine.links[between].seconds(2, 1.2e9) == pytest.approx(0.1 + 6e-6)


@pytest.mark.parametrize("name", [name.replace("N", "5") for name in PRESETS])
def test_seed_and_noise_are_arguments(name):
    machine = preset(name, seed=3, noise=0.1)
    assert (machine.seed, machine.noise) == (3, 0.1)
    assert (preset(name).seed, preset(name).noise) == (0, 0.02)


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="unknown machine 'v100x3'; known: ") as caught:
        preset("v100x3")
    assert all(name in str(caught.value) for name in PRESETS)


@pytest.mark.parametrize("number", ["0", "x", "", "-1", "1.5", "N", "²"])
def test_uniform_needs_a_number(number):
    with pytest.raises(ValueError, match="needs a whole number N of at least 1"):
        preset(f"uniform:{number}")


@pytest.mark.parametrize("number", ["100001", "100000000000", "1" * 18, "1" * 5000])
def test_uniform_has_a_bound(number):
    message = "workers.* too many.*, use at most 100,000: each has a replica"
    with pytest.raises(ValueError, match=message) as caught:
        preset(f"uniform:{number}")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("noise", [1e6, 3.1])
@pytest.mark.parametrize("make", [preset, load_machine])
def test_noise_has_a_bound(make, noise):
    with pytest.raises(ValueError, match=f"noise={noise!r}: pass a number from 0 to 3"):
        make("v100x2", noise=noise)


def test_a_name_is_a_string():
    with pytest.raises(ValueError, match="name=3: pass a string"):
        preset(3)


def test_load_machine_by_name():
    assert load_machine("v100x2") == preset("v100x2")
    assert load_machine("v100x2", seed=3, noise=0.0) == preset(
        "v100x2", seed=3, noise=0.0
    )
    with pytest.raises(ValueError, match="unknown machine .*json"):
        load_machine("v100")


def test_load_machine_from_a_file(tmp_path):
    saved = preset("v100x2", seed=7, noise=0.3)
    path = tmp_path / "mine.json"
    saved.save(path)
    assert load_machine(path) == saved
    assert load_machine(str(path), seed=0).seed == 0
    assert load_machine(path, noise=0.0) == saved.without_noise()
    with pytest.raises(FileNotFoundError, match="other.json"):
        load_machine(tmp_path / "other.json")


def test_every_preset_can_be_saved(tmp_path):
    for name in PRESETS:
        machine = preset(name.replace("N", "5"))
        machine.save(tmp_path / "m.json")
        assert Machine.load(tmp_path / "m.json") == machine


# --- the papers' models on the papers' machines ---------------------------------------

WALL_CLOCKS = {  # Table 7: (N, batch, epochs, sync, balanced, biased [s])
    "resnet20": (50_000, 64, 100, 8025.6, 3933.6, 1437.6),
    "wrn16": (6149, 32, 150, 141_023.2, 138_686.9, 5766.0),
    "wrn28": (50_000, 128, 200, 261_961.1, 254_498.3, 7666.9),
}


@pytest.mark.parametrize("model", WALL_CLOCKS)
def test_step_times_give_the_wall_clocks_of_table_7(model):
    number, batch, epochs, *seconds = WALL_CLOCKS[model]
    machine = preset(f"rtx4090+epyc7543-{model}")
    gpu, cpu = (worker.cost.seconds(batch) for worker in machine.workers)
    sync = machine.links[""].seconds(2, 1e9)
    iterations = epochs * number / (2 * batch)
    found = (cpu + sync, cpu + sync / 32, gpu + sync / 32)
    assert [iterations * f for f in found] == pytest.approx(seconds, rel=1e-3)


def test_wide_resnets_have_the_published_times():
    gpu, cpu = preset("rtx4090+epyc7543").workers
    assert gpu.cost.seconds(128) == pytest.approx(0.1940)
    assert cpu.cost.seconds(128) == pytest.approx(6.5230)
    # from Table 7, to which the published ones fit within 2 %
    gpu, cpu = preset("rtx4090+epyc7543-wrn28").workers
    assert gpu.cost.seconds(128) == pytest.approx(0.1940, rel=0.025)
    assert cpu.cost.seconds(128) == pytest.approx(6.5230, rel=0.025)


@pytest.mark.parametrize("model", WALL_CLOCKS)
def test_ten_workers_are_as_fast_as_two_and_synchronise_in_the_same_time(model):
    two = preset(f"rtx4090+epyc7543-{model}")
    ten = preset(f"rtx4090x8+epyc7543x2-{model}")
    assert [w.kind for w in ten.workers] == ["rtx4090"] * 8 + ["epyc7543"] * 2
    assert {w.cost for w in ten.workers} == {w.cost for w in two.workers}
    seconds = ten.links[""].seconds(10, 1e9)
    assert seconds == pytest.approx(two.links[""].seconds(2, 1e9), rel=1e-6)


def test_crossbow_s_resnet32_has_the_published_rates():
    machine = preset("titanx8-resnet32")
    step, sync = machine.workers[0].cost.seconds(64), machine.links[""].seconds(8, 1e9)
    assert 8 * 64 / step == pytest.approx(18_500)
    assert 8 * 64 / (step + sync) == pytest.approx(15_500)
    with_four = machine.with_workers_per_device(4).workers
    assert len(with_four) == 32
    # four learners of one GPU together: 1.4 times the throughput of one
    assert 4 / with_four[0].slowdown(4) == pytest.approx(1.4)


def test_a_curve_stays_unless_another_one_is_given():
    machine = preset("titanx8-resnet32")
    assert machine.with_workers_per_device(2).workers[0].curve == (1.0, 1.12, 1.25, 1.4)
    assert machine.with_workers_per_device(2, (1, 2)).workers[0].curve == (1.0, 2.0)
    assert machine.with_workers_per_device(2, ()).workers[0].curve == ()


def test_crossbow_s_resnet50_takes_220_ms_with_two_learners():
    worker = preset("titanx8-resnet50").with_workers_per_device(2).workers[0]
    seconds = worker.cost.seconds(16) * worker.slowdown(2)
    assert seconds == pytest.approx(0.220)
