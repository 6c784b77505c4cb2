"""A mesh of several processes: the same run as one process with as many devices."""

import json
import os
import signal
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from started_processes import PLAIN, finish, names, says, start

SCRIPT = Path(__file__).parent / "mesh_process.py"
TESTS = Path(__file__).parents[2]
DEVICES = 4
PATHS = [str(SCRIPT.parent), str(TESTS)]
# gloo adds the processes' sums in another order than one process adds its devices'
TOLERANCE = 1e-6


def run(count, task, **environment):
    """Return (status, lines of stdout, lines of stderr) of all processes."""
    environment |= {
        "JAX_NUM_CPU_DEVICES": str(DEVICES // count),
        "PYTHONPATH": os.pathsep.join([*PATHS, PLAIN.get("PYTHONPATH", "")]),
    }
    return finish(start(count, task, script=SCRIPT, environment=environment))


def results(found):
    """Return what every process printed; all must succeed."""
    for status, out, err in found:
        assert status == 0, "\n".join([*out, *err])
    return [json.loads(out[-1]) for _, out, _ in found]


@cache
def alone():
    (only,) = results(run(1, "equal"))
    return only


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_equal_one(count):
    found = results(run(count, "equal"))
    for each in found[1:]:
        assert each == found[0]  # to the bit, in every process
    for name, expected in alone().items():
        actual = found[0][name]
        for key in ("updates", "stopped", "events"):
            assert actual[key] == expected[key], (name, key)
        for a, b in zip(actual["params"], expected["params"], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE, err_msg=name)
        np.testing.assert_allclose(actual["losses"], expected["losses"], rtol=1e-5)
    assert alone()["nan"]["events"] != []


@pytest.mark.full
def test_processes_that_disagree_say_so_and_end():
    for status, _, err in run(2, "disagree"):
        assert status == 2
        assert says("disagree about the strategy", err)
        assert says("start all with the same files and flags", err)


@pytest.mark.full
def test_wall_clock_time_is_process_0s():
    first, second = results(run(2, "real"))
    assert first == second
    assert first["updates"][-1] > 0


@pytest.mark.full
def test_ctrl_c_of_process_0_stops_all_at_the_same_superstep():
    first, second = results(run(2, "interrupt"))
    assert first == second
    assert first["stopped"] == "interrupted"


@pytest.mark.full
def test_an_exception_in_a_callback_of_process_0_stops_all():
    first, second = results(run(2, "callback"))
    assert first["stopped"] == second["stopped"]
    assert "the disk is full" in first["stopped"]


@pytest.mark.full
def test_sys_exit_in_one_process_ends_the_others():
    """They would wait for it in the next superstep, and it for them at its exit."""
    first, second = run(2, "leave")
    assert second[0] == 3
    assert first[0] != 0
    assert names(1, first[2])


@pytest.mark.full
def test_a_process_that_dies_is_named_by_the_others():
    killed, *others = sorted(run(4, "die"), key=lambda each: each[0])
    assert killed[0] == -signal.SIGKILL
    for status, _, err in others:
        assert status != 0
        assert names(1, err)
