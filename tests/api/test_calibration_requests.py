"""An invalid or endless calibration is refused at once."""

import pytest
from tiny_runs import counting_data, counting_task, nothing_compiled

import hetjax as hj
from hetjax.api.calibration import MOST_ROUNDS, MOST_STEPS

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"local_steps": (1, 1_000_000)},
            "local_steps has 1000000: give at most 1,000",
        ),
        ({"local_steps": (MOST_STEPS + 1,)}, "local_steps has 1001: .* together"),
        ({"local_steps": (0,)}, "local_steps has 0: give whole numbers, at least 1"),
        ({"local_steps": (1.5,)}, r"local_steps has 1\.5"),
        ({"local_steps": ()}, r"local_steps=\(\): give a sequence"),
        ({"local_steps": 8}, "local_steps=8: give a sequence"),
        ({"batch_sizes": (INF,)}, "batch_sizes has inf: give whole numbers"),
        ({"batch_sizes": (4, NAN)}, "batch_sizes has nan"),
        ({"batch_sizes": (25,)}, "batch_sizes has 25: give at most 24; the training"),
        ({"batch_sizes": (10**30,)}, "batch_sizes has 10{30}: give at most 24"),
        ({"batch_sizes": "16"}, "batch_sizes='16': give a sequence"),
        ({"repeats": 0}, "repeats has 0: give whole numbers, at least 1"),
        ({"repeats": 2.5}, r"repeats has 2\.5"),
        ({"repeats": 10**12}, "repeats has 1000000000000: give at most 100,000"),
        (
            {"repeats": MOST_ROUNDS, "batch_sizes": (4, 8)},
            "repeats=100000: these are 400000 rounds for each worker, give at most",
        ),
    ],
)
def test_invalid_calibrations(options, message):
    options = {"batch_sizes": (4,), "progress": False} | options
    with nothing_compiled(), pytest.raises(ValueError, match=message):
        hj.calibrate(counting_task(), counting_data(), ["cpu:0"], **options)
