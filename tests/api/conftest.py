"""All tests of a task share its compiled programs."""

import pytest
from shared_programs import programs


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    from hetjax.api import session

    monkeypatch.setattr(session, "Programs", programs)
