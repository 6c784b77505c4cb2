"""Every test runs on eight CPU devices, and rank promotion is an error."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from fake_time import World

from hetjax.runtimes.threads import wall_clock

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """What is measured of devices is kept apart from the user's measurements."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HETJAX_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture
def world(monkeypatch):
    """A world whose time is scripted, for the wall clock."""
    scripted = World()
    monkeypatch.setattr(wall_clock, "time", scripted)
    monkeypatch.setattr(wall_clock, "queue", scripted)
    return scripted
