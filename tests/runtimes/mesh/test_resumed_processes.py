"""Checkpointed runs of several processes: each saves its part, all resume together."""

import shutil
import signal

import pytest
from started_processes import says
from test_mesh_processes import results, run

pytestmark = pytest.mark.full
EVALS = 20  # of a run of mesh_process.py


def checkpointed(folder, stop="none 0 0", count=2, **environment):
    return run(count, "checkpointed", FOLDER=str(folder), STOP=stop, **environment)


def numbers(folder, process):
    paths = (folder / f"process_{process}").glob("checkpoint-*.npz")
    return sorted(p.stem.removeprefix("checkpoint-") for p in paths)


def check_resumes(folder, *, min_evals):
    """All processes resume from the same evaluation, and end with the same model."""
    first, second = results(checkpointed(folder))
    assert first == second
    assert first["stopped"] == ""
    assert len(first["seconds"]) == 1 + EVALS
    assert first["seconds"] == sorted(first["seconds"])
    # earlier ones were not repeated
    assert 1 + EVALS - len(first["calls"]) >= min_evals
    return first


def test_a_run_survives_repeated_signals_to_the_first_process(tmp_path):
    before = []
    for number, name in enumerate(["SIGTERM", "SIGINT", "SIGUSR1"], 1):
        first, second = results(checkpointed(tmp_path, f"{name} 2 0"))
        assert first == {**second, "signal": name}
        assert len(first["cuts"]) == number - 1
        assert first["stopped"] == "interrupted"
        assert first["seconds"][: len(before)] == before
        before = first["seconds"]
    last = check_resumes(tmp_path, min_evals=1)
    assert 1 <= len(last["cuts"]) <= 3
    assert numbers(tmp_path, 0) == numbers(tmp_path, 1)
    again, _ = results(checkpointed(tmp_path))
    assert again == {**last, "calls": []}  # it is over


@pytest.mark.parametrize("process", [0, 1])
def test_a_killed_process_resumes_from_the_last_checkpoint(tmp_path, process):
    found = checkpointed(tmp_path, f"SIGKILL 8 {process}")
    assert found[process][0] == -signal.SIGKILL
    assert found[1 - process][0] not in (0, -signal.SIGKILL)
    newest = min(max(map(int, numbers(tmp_path, k))) for k in (0, 1))
    last = check_resumes(tmp_path, min_evals=1)
    assert last["cuts"] == [[newest, ""]]


def test_a_checkpoint_damaged_for_one_process_is_used_by_none(tmp_path):
    results(checkpointed(tmp_path, "SIGTERM 6 0"))
    newest = numbers(tmp_path, 0)[-1]
    (tmp_path / "process_1" / f"checkpoint-{newest}.npz").write_text("{}")
    last = check_resumes(tmp_path, min_evals=1)
    assert f"process_1/checkpoint-{newest}.npz: it was cut off" in last["cuts"][0][1]


@pytest.mark.parametrize("process", [0, 1])
def test_an_error_of_one_process_ends_all(tmp_path, process):
    """Otherwise they would wait for each other at the end."""
    found = checkpointed(tmp_path, f"error 4 {process}")
    assert all(status in (0, 1, 2) for status, _, _ in found)
    check_resumes(tmp_path, min_evals=1)


def test_other_numbers_of_processes_are_refused(tmp_path):
    results(checkpointed(tmp_path, "SIGTERM 4 0"))
    ((status, _, err),) = checkpointed(tmp_path, count=1)
    assert status == 2
    assert says("holds a run of several processes: start the same number", err)
    for status, _, err in checkpointed(tmp_path, count=4):
        assert status == 2
        assert says("the processes have none in common", err)
    shutil.rmtree(tmp_path / "process_1")
    for status, _, err in checkpointed(tmp_path):
        assert status == 2
        assert says("the processes have none in common", err)


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_full_disk_of_one_process_ends_all_or_none(tmp_path, on_failure):
    """They must not wait for one that has ended."""
    in_the_way = tmp_path / "process_1" / ".checkpoint-000002.npz.partial"
    (in_the_way / "folder").mkdir(parents=True)
    first, second = results(checkpointed(tmp_path, ON_FAILURE=on_failure))
    assert first == second
    if on_failure == "continue":
        assert first["stopped"] == ""
        return
    found = "process_1/checkpoint-000002.npz could not be written: IsADirectoryError"
    assert found in first["stopped"]
    shutil.rmtree(in_the_way)
    check_resumes(tmp_path, min_evals=1)
