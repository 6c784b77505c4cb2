"""Property tests of readers: on a few examples in core, on many in full."""

import pytest
from hypothesis import given, settings
from quick import quick


def fuzz(*strategies, core, full):
    """As `given`, for a function whose first argument is `tmp_path_factory`."""

    def decorate(test):
        @pytest.mark.parametrize("examples", quick([core, full], core))
        def run(tmp_path_factory, examples):
            check = settings(deadline=None, max_examples=examples)
            check(given(*strategies)(test))(tmp_path_factory)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
