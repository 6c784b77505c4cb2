"""What is measured of devices is kept apart from the user's own measurements."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("HETJAX_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
