"""Threads of workers send and read nothing implicitly, where devices are accelerators.

Here CPUs are treated as accelerators. An implicit transfer would wait for the device.
"""

import jax
import pytest
from real_runs import arrived, lost, merged, real

import hetjax as hj
from hetjax.engine import batch_feeds, replica_store, step_runner
from hetjax.runtimes.threads.thread_executor import _WorkerThread


@pytest.fixture
def guarded(monkeypatch):
    """The threads of workers, and the turns that they take, allow no transfers."""
    inner = _WorkerThread.run

    def run(self):
        with jax.transfer_guard("disallow"):
            inner(self)

    monkeypatch.setattr(_WorkerThread, "run", run)


@pytest.fixture
def accelerators(monkeypatch):
    for module in (batch_feeds, replica_store, step_runner):
        monkeypatch.setattr(module, "is_host", lambda device: False)


def strategy(name, **settings):
    return hj.STRATEGIES[name](batch_size=4, learning_rate=0.05, **settings)


MACHINE = hj.local_machine(["cpu:0", "cpu:1"], step_mode="dispatch")


@pytest.mark.parametrize(
    ("name", "on_nan"),
    [
        *(("async_sgd", "reset"), ("async_sgd", "stop"), ("easgd", "reset")),
        *(("local_sgd", "reset"), ("adaptive_sgd", "stop")),
    ],
)
def test_nothing_is_sent_or_read_implicitly(name, on_nan, guarded, accelerators):
    """The leader's thread, which evaluates and starts the run, is free to do both."""
    last = [arrived(0), arrived(1), *3 * [merged]]
    history = real(strategy(name), MACHINE, until=last, on_nan=on_nan)
    assert history.merges >= 3
    assert not history.events, "no thread has failed"
    assert hj.replay(history.trace, progress=False).replayed == "equal"


def test_it_would_be_noticed(guarded):
    """On a CPU, NumPy's arrays are passed to programs as they are."""
    history = real(strategy("async_sgd"), MACHINE, until=[lost(0)])
    assert "Disallowed host-to-device transfer" in history.events[0].why
