"""The command for a GPU, on a machine without one: tiny settings of every part.

The numbers are not tested: they mean nothing here.
"""

import json
import os
import subprocess
import sys
import time

import pytest
from script_parts import EXPERIMENTS

from experiments.benchmarks import child, cuda_parts, cuda_tests
from experiments.benchmarks.cuda_parts import (
    PARTS,
    TABLES,
    has_failed,
    markdown,
    measured,
)

pytestmark = pytest.mark.full  # every part imports JAX and compiles
ABOUT = {"platform": "gpu", "device": "a card", "jax": "1", "torch": None}
FOUND = {  # what the scripts print, of which their own tests take care
    "tests": {"passed": 3, "skipped": 1, "failures": ["a::b"], "seconds": 2.0},
    "local_sgd_mlp": {
        "replica_steps_per_s": {
            "mlp": {
                **{"hetjax": 10.0, "jax_scan": 20.0, "jax_unrolled": 5.0},
                **{"jax_dispatch": 4.0, "fedjax": None, "drjax": 100.0},
                **{"torch_1_thread": 3.0, "torch_2_threads": 6.0},
            }
        },
        "ratios": {"mlp/hetjax_over_jax": 0.5, "mlp/hetjax_over_best_peer": 0.1},
    },
    "virtual": {
        "us_per_update": {
            "mlp784": {"easgd": {"compiled": 60.0, "reference": 240.0, "writing": 20.0}}
        },
        "ratios": {"mlp784": {"easgd": {"reference / compiled": 4.0}}},
    },
    "many_workers": {
        "updates_per_second": {"sync, 8": 5000, "async, 8": 2500},
        "ratios": {"sync / async, 8": 2.0},
    },
    "overhead": {"medians": {"rounds/1ms": {"hetjax_us": 3000.0, "bare_us": 2000.0}}},
    "mesh_rounds": {
        "medians": {
            "rounds": {
                "mlp784/1dev": {
                    **{"by_hand_scan_us": 4.0, "by_hand_vmapped_us": 2.0},
                    **{"feeding_scan_us": 8.0, "feeding_vmapped_us": 5.0},
                    **{"mesh_us": 10.0, "threads_us": 40.0, "drjax_us": 3.0},
                }
            }
        }
    },
    "merges": {
        "medians": {
            "merges": {
                "4x1M": {
                    **{"average_us": 10.0, "copy_us": 5.0, "copy_in_place_us": 8.0},
                    "average_GB_per_s": 1200.0,
                },
                "8x1M": {"skipped": "needs more memory"},
                "2dev/1M": {"psum_us": 1.0, "gathered_us": 2.0},
            }
        }
    },
    "sparse_step_40943": {
        "cases": {
            "40943/zipf": {
                "seconds": {
                    **{"chunked": 0.004, "sampled": 0.001},
                    **{"bcoo_dense_gradient": 0.002, "torch_sparse": None},
                }
            }
        }
    },
    "learners_lenet": {
        "images_per_second": {
            "lenet, 16": {"sync_sgd, 1": 1000.0, "sma, 4, vmapped": 2500.0}
        }
    },
    "vit_b_bfloat16": {
        "dtype": "bfloat16",
        "models": {
            "vit_b": {
                **{"batch_size": 32, "hetjax_per_s": 1000.0, "torch_per_s": 500.0},
                **{"ratio": 2.0, "step_bytes": 4e6, "gflops_per_s": 99_000.0},
                "share_of_peak": 0.1,
            }
        },
    },
    "gpu_and_cpu": {
        "measured": {
            "adaptive_sgd": {
                **{"examples_per_second": 1500.0, "measured": 0.02},
                "predicted": 0.022,
            },
            "alone": {"examples_per_second": 1000.0},
        },
        "ratios": {"prediction_error/adaptive_sgd": 0.1},
    },
    "mega_batch": {
        **{"updates": 106, "examples": 108_480, "seconds": 1.8},
        **{"compile_seconds": 11.5, "ratios": {"wall_over_virtual": 0.66}},
    },
}
ROWS = {  # of the tables, by part
    "tests": ["| 3 | 1 | a::b | 2 |"],
    "local_sgd_mlp": [
        "| mlp | 10 | 20 | 5 | 4 | not installed | 100 | 3 | 6 | 0.50 | 0.10 |"
    ],
    "virtual": ["| mlp784, easgd | 60.0 | 240.0 |  |  | 20.0 |  | 4.00 |"],
    "many_workers": [
        *("| sync, 8 | 5,000 |", "| async, 8 | 2,500 |"),
        "| sync / async, 8 | 2.00 |",
    ],
    "overhead": ["| rounds/1ms | 3,000 us | 2,000 us | 1,000 us | 50 % |"],
    "mesh_rounds": [
        "| mlp784/1dev | 10 | 2 | 5 | 40 | not installed | 3 | 5.00 | 2.00 |"
    ],
    "merges": [
        "| 4x1M | 10 | 5 | 8 | 1,200 | 0.50 | 0.80 |",
        "| 8x1M | needs more memory |  |  |  |  |  |",
    ],
    "sparse_step_40943": [
        "| 40943/zipf | 4.00 | 1.00 | 2.00 | not installed | 0.50 | not installed |"
    ],
    "learners_lenet": [
        "| lenet, 16 | sync_sgd, 1 | 1,000 | 1.00 |",
        "| lenet, 16 | sma, 4, vmapped | 2,500 | 2.50 |",
    ],
    "vit_b_bfloat16": [
        "| vit_b, 32 | bfloat16 | 1,000 | 500 | 2.00 | 99.0 | 0.10 | 4 |"
    ],
    "gpu_and_cpu": [
        "| adaptive_sgd | 1,500 | 1.50 | 20.00 | 22.00 | 10 % |",
        "| alone | 1,000 | 1.00 |  |  |  |",
    ],
    "mega_batch": ["| 106 | 108,480 | 1.8 | 11.5 | 0.66 |"],
}


def test_every_table_is_seen_below():
    assert {PARTS[name].table for name in FOUND} == set(TABLES)
    assert {part.table for part in PARTS.values()} == set(TABLES)


@pytest.mark.parametrize("name", FOUND)
def test_the_table_of_a_part(name):
    text = markdown({"about": ABOUT, "parts": {name: {"found": FOUND[name]}}})
    _, _, head, _, header, rule, *rows = text.splitlines()
    while not rows[-1]:
        rows.pop()
    assert head == f"**{PARTS[name].table}**"
    assert rows == ROWS[name]
    assert {line.count("|") for line in (header, rule, *rows)} == {
        len(TABLES[PARTS[name].table]) + 1
    }


def test_parts_without_figures_are_named():
    parts = {"merges": {"failed": "ended with 1"}, "tests": {"left_out": "no time"}}
    lines = markdown({"about": ABOUT, "parts": parts}).splitlines()
    assert lines == [
        *("a card, JAX 1, PyTorch None", ""),
        *("- merges: ended with 1", "- tests: no time"),
    ]


def test_parts_run_and_are_written(tmp_path):
    """The two that need least time; all of them take three minutes."""
    out = tmp_path / "new" / "cuda.json"
    chosen = ("tests", "merges")
    script = EXPERIMENTS / "benchmarks" / "cuda.py"
    flags = (f"--parts={','.join(chosen)}", "--minutes=5", f"--out={out}")
    done = subprocess.run(
        [sys.executable, script, *flags],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    found = json.loads(out.read_text())
    assert found["about"]["platform"] == "cpu"
    assert tuple(found["parts"]) == chosen
    for name, part in found["parts"].items():
        assert part["flags"] == list(PARTS[name].tiny)
        assert set(part) == {"flags", "seconds", "found"}
    assert done.stdout == markdown(found) + "\n"
    counts = found["parts"]["tests"]["found"]
    assert (counts["passed"], counts["failures"]) == (0, [])  # there is no GPU
    assert counts["skipped"] > 40


def test_tests_are_counted_once():
    counted = cuda_tests.Counted()
    for when, outcome in [
        *(("setup", "passed"), ("call", "passed"), ("teardown", "passed")),
        *(("setup", "skipped"), ("teardown", "passed")),
        *(("setup", "passed"), ("call", "failed"), ("teardown", "passed")),
        *(("setup", "failed"), ("teardown", "passed")),
    ]:
        counted.pytest_runtest_logreport(
            pytest.TestReport("a::b", ("a", 1, ""), {}, outcome, None, when)
        )
    assert vars(counted) == {"passed": 1, "skipped": 1, "failures": ["a::b", "a::b"]}


def test_a_failed_test_is_a_failure():
    assert has_failed({"found": FOUND["tests"]})
    assert not has_failed({"found": FOUND["merges"]})


def test_a_part_that_takes_too_long_is_ended_with_all_its_processes(tmp_path):
    pids = tmp_path / "pids"
    code = (
        f"import os, time; os.fork()\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        f"time.sleep(60)"
    )
    began = time.monotonic()
    assert child.output_of(["-c", code], 3.0) == {"failed": "not done in 3 s"}
    assert time.monotonic() - began < 30
    both = [int(line) for line in pids.read_text().split()]
    assert len(both) == 2
    for pid in both:
        with pytest.raises(ProcessLookupError):
            _wait_until_gone(pid)


def _wait_until_gone(pid):
    for _ in range(100):
        os.kill(pid, 0)
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(3)", "ended with 3; see standard error"),
        ("print('no object')", "printed no JSON: Expecting value: line 1"),
    ],
)
def test_a_part_that_fails_says_why(code, why):
    assert child.output_of(["-c", code], 60.0)["failed"].startswith(why)


@pytest.mark.parametrize(("left", "longest"), [(2.0, 60.0), (60.0, 2.0)])
def test_a_part_has_its_own_time_and_what_is_left(monkeypatch, left, longest):
    monkeypatch.setattr(cuda_parts, "FEWEST_SECONDS", 0.0)
    part = PARTS["mega_batch"]._replace(longest=longest)
    monkeypatch.setitem(PARTS, "mega_batch", part)
    outcome = measured("mega_batch", tiny=False, left=left)
    assert outcome["failed"] == "not done in 2 s"
    assert outcome["flags"] == list(part.flags)


def test_without_time_a_part_is_left_out():
    assert measured("merges", tiny=True, left=1.0) == {"left_out": "the time was up"}


def test_the_settings_of_every_part_are_flags_of_its_script():
    """A slip would be seen on the GPU alone, after minutes."""
    for name, part in PARTS.items():
        script = EXPERIMENTS / "benchmarks" / f"{part.script}.py"
        assert script.exists(), name
        text = script.read_text()
        if part.script == "sparse_step":
            text += (script.parent / "sparse_step_contenders.py").read_text()
        for flag in (*part.flags, *part.tiny):
            own = flag.removeprefix("--").partition("=")[0]
            known = {f'"{own}"', f'"{own.removeprefix("no")}"'}
            assert any(word in text for word in known), (name, flag)
