"""A comparison small enough to compute every number by hand."""

import pytest

from hetjax.report import Comparison, History, WorkerRecord


def history(strategy="sync", seed=0, accuracies=(), waiting=(0.0, 0.0), **changes):
    """A run of two workers over 10 s, evaluated every second from 0 s on."""
    h = History(strategy, seed, {"learning_rate": 0.5}, "accuracy", duration=10.0)
    for t, accuracy in enumerate(accuracies):
        point = {"seconds": float(t), "updates": 10 * t, "examples": 320 * t}
        h.evals.append({**point, "loss": 2.0 - accuracy, "accuracy": accuracy})
    for k, seconds in enumerate(waiting):
        h.workers.append(
            WorkerRecord(
                f"w{k}", busy=10.0 - seconds, waiting=seconds, updates=30, examples=960
            )
        )
        if seconds < 10.0:
            h.timeline.add(k, "busy", 0.0, 10.0 - seconds)
    h.compilations = 3
    for name, value in changes.items():
        setattr(h, name, value)
    return h


@pytest.fixture(scope="session")
def make():
    return history


@pytest.fixture(scope="session")
def make_histories():
    def made():
        return [
            history("sync", 0, (0.1, 0.5, 0.90, 0.94), waiting=(0.0, 4.0)),
            history("async", 0, (0.1, 0.7, 0.80, 0.85), compilations=5),
            history("sync", 1, (0.2, 0.4, 0.60, 0.90), waiting=(0.0, 2.0)),
            history("sync", 2, (0.0, 0.3, 0.50, 0.80), waiting=(0.0, 8.0)),
        ]

    return made


@pytest.fixture
def histories(make_histories):
    """Three seeds of "sync", of which one never reaches 0.9, and one run of "async"."""
    return make_histories()


@pytest.fixture
def runs(histories):
    return Comparison(histories, data={"name": "hand-made"}, machine={"workers": 2})
