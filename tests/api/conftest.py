"""All tests of a task share its compiled programs, as the runs of a session do."""

from functools import cache

import pytest


@cache
def _programs(task):
    from hetjax.engine.compiled.programs import Programs

    return Programs(task)


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    from hetjax.api import session

    monkeypatch.setattr(session, "Programs", _programs)
