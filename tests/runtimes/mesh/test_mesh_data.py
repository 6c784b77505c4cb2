"""Devices of a mesh that have the training data, and gather their batches themselves.

As accelerators do; here CPUs are treated as accelerators.
"""

import pytest
from mesh_runs import close, on_mesh
from small_layers import DATA as XMC

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.runtimes.mesh import superstep
from hetjax.strategies.types import Strategy

pytestmark = pytest.mark.usefixtures("cpu_alone")
STEPS = (4, 2, 1, 4, 1, 3, 4, 2)  # of eight workers
SIZES = (4, 2, 3, 4, 1, 4, 2, 4)
COMMON = {"batch_size": 4, "learning_rate": 0.1}


@pytest.fixture
def same(monkeypatch):
    """Data on the devices and batches from the host give the same run."""

    def compare(strategy, where, supersteps, steps, **options):
        expected = on_mesh(strategy, where, supersteps, steps, **options)
        with monkeypatch.context() as patch:
            patch.setattr(superstep, "is_host", lambda device: False)
            # no batch is made on the host
            patch.setattr(superstep, "make_uneven_batches", None)
            actual = on_mesh(strategy, where, supersteps, steps, **options)
        close(actual.params, expected.params, 1e-6)
        for counter in ("examples", "padded", "updates", "nans"):
            numbers = (
                [getattr(w, counter) for w in h.workers] for h in (actual, expected)
            )
            assert next(numbers) == next(numbers), counter
        assert actual.merges == expected.merges > 2

    return compare


@pytest.mark.parametrize(
    ("where", "step_mode"),
    [
        *(("8 x 1", "fused"), ("8 x 1", "dispatch")),
        *(("2 x 4", "vmapped"), ("2 x 4", "unrolled")),
    ],
)
def test_rounds_of_unlike_workers(where, step_mode, same):
    """They make other numbers of steps of other sizes, which are padded."""
    policy = schedule.rounds(local_steps=STEPS, batch_size=SIZES)
    chosen = Strategy(policy, local.sgd(momentum=0.5), merge.average(), 4, 0.1)
    same(chosen, where, 3, 4, step_mode=step_mode)


def test_several_supersteps_of_one_launch(same):
    same(hj.sma(**COMMON, local_steps=3, momentum=0.5), "8 x 1", 4, 3, per_launch=2)


def test_losses_that_a_sampler_observes(same):
    same(hj.biased_local_sgd(**COMMON, local_steps=STEPS), "8 x 1", 4, 4)


def test_sparse_rows(same):
    task = hj.classification(hj.models.sparse_mlp(hidden=4), XMC)
    chosen = hj.local_sgd(**COMMON, local_steps=2, momentum=0.0)
    same(chosen, "2 x 4", 3, 2, task=task, data=XMC)
