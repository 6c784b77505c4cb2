"""Machines and strategies that fit on a mesh, and errors for those that do not."""

import jax
import pytest
from mesh_runs import MeshMachine, layout, run
from real_runs import DATA, TASK

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.runtimes.mesh.mesh_layout import misfit_of_machine
from hetjax.strategies import Strategy

COMMON = {"batch_size": 4, "learning_rate": 0.1}
TWO = ["cpu:0", "cpu:1"]
FITS = (
    "sequential_sgd",
    "sync_sgd",
    "elastic_sgd",
    "easgd_sync",
    "sma",
    "hier_sgd",
    "local_sgd",
    "biased_local_sgd",
    "fed_nova",
    "fed_acc",
    "fed_adp",
    "diloco",
    "slow_mo",
    "fed_opt",
    "fed_prox",
    "scaffold",
    "sparse_loco",
)
IN_PARTS = ("streaming_diloco",)  # bulk-synchronous, but a mesh merges whole models
SETTINGS = {
    "hier_sgd": {"levels": (2,), "local_steps": (1, 2)},
    "adaptive_sgd": {"mega_batch": 16},
    "biased_local_sgd": {"local_steps": 2},
}


def strategy(name):
    return hj.STRATEGIES[name](**COMMON, **SETTINGS.get(name, {}))


def train(machine, chosen, **options):
    options = {"seconds": 0.05, "num_evals": 1, "progress": False, **options}
    return hj.train(TASK, DATA, machine, chosen, **options)


@pytest.mark.parametrize("name", hj.STRATEGIES)
def test_bulk_synchronous_strategies_fit(name):
    assert strategy(name).policy.bulk_synchronous == (name in (*FITS, *IN_PARTS))


@pytest.mark.parametrize("name", [n for n in hj.STRATEGIES if n not in FITS])
def test_other_strategies_are_refused_immediately(name):
    machine = hj.local_machine(TWO, placement="mesh")
    with pytest.raises(ValueError, match=rf'{name} cannot .* use placement="threads"'):
        train(machine, strategy(name))


def test_a_tuner_is_refused():
    """Its decisions follow measured throughputs."""
    machine = hj.local_machine(TWO, workers_per_device=2, placement="mesh")
    tuned = hj.sma(**COMMON, tuner="paper")
    with pytest.raises(ValueError, match="not bulk-synchronous"):
        train(machine, tuned)


def test_a_comparison_refuses_before_it_runs_anything():
    machine = hj.local_machine(TWO, placement="mesh")
    ran = []
    with pytest.raises(ValueError, match="async_sgd cannot be placed on a mesh"):
        hj.compare(
            TASK,
            DATA,
            machine,
            {n: strategy(n) for n in ("elastic_sgd", "async_sgd")},
            seconds=0.05,
            on_history=ran.append,
            progress=False,
        )
    assert ran == []


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"slowdown": {"cpu:1": 2.0}}, "cpu:1 has a slowdown"),
        (
            {"faults": (hj.machine.ScriptedFault(0.1, "kill", "cpu:1"),)},
            "scripted faults",
        ),
    ],
)
def test_workers_that_cannot_form_a_mesh(settings, why):
    machine = hj.local_machine(TWO, placement="mesh", **settings)
    with pytest.raises(ValueError, match=why):
        train(machine, strategy("elastic_sgd"))


def test_every_device_has_the_same_number_of_workers():
    machine = hj.local_machine(TWO, workers_per_device=2, placement="mesh")
    fewer = machine.subset(["cpu:0/0", "cpu:0/1", "cpu:1/0"])
    assert "same number of workers" in misfit_of_machine(fewer)
    assert not misfit_of_machine(machine)


def test_a_mesh_is_not_recorded(tmp_path):
    machine = hj.local_machine(TWO, placement="mesh")
    with pytest.raises(ValueError, match="only runs on threads can be recorded"):
        train(machine, strategy("elastic_sgd"), trace=tmp_path / "trace.jsonl")


def test_an_unknown_placement():
    with pytest.raises(ValueError, match="placement='grid': choose one of threads"):
        hj.local_machine(TWO, placement="grid")


def test_devices_of_another_platform_than_the_default_one(monkeypatch):
    """For example, CPU devices on a host with a GPU."""
    inner = jax.local_devices
    monkeypatch.setattr(
        jax,
        "local_devices",
        lambda backend=None: inner(backend=backend) if backend else [],
    )
    machine = hj.local_machine(TWO, placement="mesh")
    history = train(machine, strategy("elastic_sgd"))
    assert history.placement == "mesh of 2 x 1 workers"


@pytest.mark.parametrize(
    ("name", "start"),
    [("elastic_sgd", "mesh of 2 x 1 workers, since"), ("async_sgd", "threads, since")],
)
def test_auto_chooses_and_says_why(name, start):
    machine = hj.local_machine(TWO, placement="auto")
    history = train(machine, strategy(name))
    assert history.placement.startswith(start)
    assert history.estimates_busy == (name == "elastic_sgd")
    assert history.real
    table = str(hj.Comparison([history], data={}, machine={}).table())
    assert f"{name}: {history.placement}" in table


def test_a_custom_policy_may_not_stop_workers():
    """It claims to be bulk-synchronous but is not."""

    def init(workers, num_examples):
        return (), schedule.Actions(
            dispatch=((0, schedule.LocalRound(1, 4)),), stop=(1,)
        )

    policy = schedule.Policy(init, lambda s, e: (s, schedule.Actions()))
    wrong = policy._replace(bulk_synchronous=True)
    chosen = Strategy(wrong, local.sgd(), merge.average(), 4, 0.1)
    with pytest.raises(ValueError, match="w1, but on a mesh the workers .* are fixed"):
        run(MeshMachine(layout("2 x 4")), chosen, 3)


def test_devices_of_two_kinds():
    class Other:
        device_kind, platform, id = "other", "other", 0

    machine = hj.local_machine(["cpu:0"], placement="mesh")
    worker = machine.workers[0]
    both = machine.workers + (type(worker)("other:0", Other()),)
    why = misfit_of_machine(type(machine)(both))
    assert why.startswith(
        "a mesh needs devices of one kind, but the machine has cpu and other"
    )
