"""A world whose time is scripted, for the wall clock."""

import pytest
from fake_time import World

from hetjax.machine import wall_clock


@pytest.fixture
def world(monkeypatch):
    scripted = World()
    monkeypatch.setattr(wall_clock, "time", scripted)
    monkeypatch.setattr(wall_clock, "queue", scripted)
    return scripted
