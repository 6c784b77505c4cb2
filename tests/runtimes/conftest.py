"""Real runs of tests begin at once, and lose no worker to a busy machine."""

import sys
from collections import Counter

import pytest

ENTRIES = 5000  # of a dry run: enough for all kinds of merges of small machines
AGES = 600.0  # [s]


@pytest.fixture(autouse=True)
def _short_preparation(monkeypatch):
    """The measurements and the dry run before a run are short."""
    dry_run = sys.modules.get("hetjax.runtimes.real.dry_run")
    if dry_run is None:  # a test without JAX
        return
    from hetjax.runtimes.real.step_timer import StepTimer

    monkeypatch.setattr(dry_run, "MAX_ENTRIES", ENTRIES)
    monkeypatch.setitem(StepTimer.seconds.__kwdefaults__, "shortest", 0.0)


class Patience:
    """Which rounds may miss their deadlines: pairs (worker, number from 1 on)."""

    def __init__(self):
        self.strict = set()


@pytest.fixture
def patient(monkeypatch):
    """No worker is lost to a busy machine, except in `strict` rounds.

    These have their usual deadlines.
    """
    from hetjax.runtimes.real.deadlines import Deadlines

    patience, inner = Patience(), Deadlines.allowed

    def allowed(self, worker, local_round):
        given = self.__dict__.setdefault("given", Counter())
        given[worker] += 1
        seconds = inner(self, worker, local_round)
        return seconds + AGES * ((worker, given[worker]) not in patience.strict)

    monkeypatch.setattr(Deadlines, "allowed", allowed)
    return patience
