"""The parts of `cuda.py` in the order of their importance, and the tables of them."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks.child import output_of

Row = Sequence[str]
FEWEST_SECONDS = 15.0  # a part that has less is left out: it imports JAX, and compiles


class Part(NamedTuple):
    """A benchmark, with flags by which it takes half a minute to two on a GPU."""

    script: str
    flags: Sequence[str]
    tiny: Sequence[str]  # flags of a machine without a GPU
    table: str
    rows: Callable[[dict[str, Any]], list[Row]]  # of what the script prints
    longest: float = 120.0  # [s]


def _number(value: float | None, places: int = 2) -> str:
    return "not installed" if value is None else f"{value:,.{places}f}"


def _tests(found: dict[str, Any]) -> list[Row]:
    counts = [str(found[k]) for k in ("passed", "skipped")]
    failures = ", ".join(found["failures"]) or "none"
    return [[*counts, failures, _number(found["seconds"], 0)]]


def _local_sgd(found: dict[str, Any]) -> list[Row]:
    rows = []
    for model, speeds in found["replica_steps_per_s"].items():
        ratios = [
            found["ratios"][f"{model}/hetjax_over_{of}"] for of in ("jax", "best_peer")
        ]
        rows.append(
            [
                model,
                *(_number(speed, 0) for speed in speeds.values()),
                *map(_number, ratios),
            ]
        )
    return rows


def _virtual(found: dict[str, Any]) -> list[Row]:
    ways = ("compiled", "reference", "scan", "dispatch", "writing")
    ratios = ("compiled / scan", "reference / compiled")
    rows: list[Row] = []
    for job, measured in found["us_per_update"].items():
        for strategy, of in measured.items():
            compared = found["ratios"][job][strategy]
            cells = [f"{job}, {strategy}"]
            cells += [_number(of[way], 1) if way in of else "" for way in ways]
            cells += [_number(compared[r]) if r in compared else "" for r in ratios]
            rows.append(cells)
    return rows


def _many_workers(found: dict[str, Any]) -> list[Row]:
    rates, ratios = found["updates_per_second"], found["ratios"]
    return [
        *([name, _number(rate, 0)] for name, rate in rates.items()),
        *([name, _number(ratio)] for name, ratio in ratios.items()),
    ]


def _overhead(found: dict[str, Any]) -> list[Row]:
    return [
        [
            what,
            *(f"{_number(row[k], 0)} us" for k in ("hetjax_us", "bare_us")),
            f"{_number(row['hetjax_us'] - row['bare_us'], 0)} us",
            f"{100 * (row['hetjax_us'] / row['bare_us'] - 1):.0f} %",
        ]
        for what, row in found["medians"].items()
    ]


def _mesh_rounds(found: dict[str, Any]) -> list[Row]:
    rows = []
    for case, row in found["medians"]["rounds"].items():
        by_hand, feeding = (
            min(took for who, took in row.items() if who.startswith(prefix))
            for prefix in ("by_hand", "feeding")
        )
        took = [row["mesh_us"], by_hand, feeding, row["threads_us"]]
        peers = [row.get(f"{peer}_us") for peer in ("fedjax", "drjax")]
        ratios = (row["mesh_us"] / by_hand, row["mesh_us"] / feeding)
        rows.append(
            [case, *(_number(t, 0) for t in [*took, *peers]), *map(_number, ratios)]
        )
    return rows


def _merges(found: dict[str, Any]) -> list[Row]:
    rows = []
    for case, row in found["medians"]["merges"].items():
        if "skipped" in row:
            rows.append([case, row["skipped"], *5 * [""]])
        elif "average_us" in row:  # the others are along a mesh
            took = (row[f"{k}_us"] for k in ("average", "copy", "copy_in_place"))
            rates = (row["copy_us"], row["copy_in_place_us"])
            rows.append(
                [
                    case,
                    *(_number(t, 0) for t in took),
                    _number(row["average_GB_per_s"], 0),
                    *(_number(rate / row["average_us"]) for rate in rates),
                ]
            )
    return rows


_SPARSE = ("chunked", "sampled", "bcoo_dense_gradient", "torch_sparse")


def _sparse_step(found: dict[str, Any]) -> list[Row]:
    rows = []
    for case, measured in found["cases"].items():
        seconds = [measured["seconds"][who] for who in _SPARSE]
        ratios = [None if s is None else s / seconds[0] for s in seconds[2:]]
        took = [None if s is None else 1e3 * s for s in seconds]
        rows.append([case, *map(_number, took), *map(_number, ratios)])
    return rows


def _models(found: dict[str, Any]) -> list[Row]:
    return [
        [
            f"{model}, {row['batch_size']}",
            found["dtype"],
            *(_number(row[k], 0) for k in ("hetjax_per_s", "torch_per_s")),
            _number(row.get("ratio")),
            _number(row["gflops_per_s"] / 1e3, 1),
            _number(row["share_of_peak"]),
            _number(row["step_bytes"] / 1e6, 0),
        ]
        for model, row in found["models"].items()
    ]


def _learners(found: dict[str, Any]) -> list[Row]:
    rows = []
    for case, speeds in found["images_per_second"].items():
        base = speeds["sync_sgd, 1"]
        for who, speed in speeds.items():
            rows.append([case, who, _number(speed, 0), _number(speed / base)])
    return rows


def _real(found: dict[str, Any]) -> list[Row]:
    alone = found["measured"]["alone"]["examples_per_second"]
    rows = []
    for name, row in found["measured"].items():
        speed = row["examples_per_second"]
        cells = [_number(speed, 0), _number(speed / alone)]
        rounds = ["", "", ""]
        if name != "alone":
            error = found["ratios"][f"prediction_error/{name}"]
            times = (1e3 * row[k] for k in ("measured", "predicted"))
            rounds = [*map(_number, times), f"{100 * error:.0f} %"]
        rows.append([name, *cells, *rounds])
    return rows


def _mega_batch(found: dict[str, Any]) -> list[Row]:
    counts = [_number(found[k], 0) for k in ("updates", "examples")]
    took = [_number(found[k], 1) for k in ("seconds", "compile_seconds")]
    return [[*counts, *took, _number(found["ratios"]["wall_over_virtual"])]]


# the header of each table, in which `cuda.py` prints the rows of its parts
TABLES: dict[str, Row] = {
    "tests on CUDA": ("passed", "skipped", "failed", "seconds"),
    "local SGD, replica-steps/s": (
        "model",
        "**hetjax, virtual machine**",
        *(
            f"hand-written JAX, {variant}"
            for variant in ("scan", "unrolled", "dispatch")
        ),
        "FedJAX",
        "DrJAX",
        *("PyTorch, 1 thread", "2 threads"),
        "over the best JAX (mark 0.9)",
        "over the best peer (marks 1.5, 1.0)",
    ),
    "virtual clock (us of an update)": (
        "job, strategy",
        *("compiled", "reference player"),
        *("hand-written: scan", "hand-written: dispatch"),
        *("writing (an event)", "compiled / scan", "reference / compiled"),
    ),
    "many workers": ("", "updates/s, or ratio"),
    "threads, one worker": ("", "hetjax", "hand-written", "added", "added"),
    "mesh (us of a round)": (
        "model, devices",
        *("mesh", "hand-written: batches ready", "hand-written: feeding", "threads"),
        *("FedJAX", "DrJAX", "mesh / ready (mark 1.10)", "mesh / feeding"),
    ),
    "a GPU and a CPU in one process": (
        *("", "examples/s", "over the GPU alone"),
        *("round (ms)", "predicted", "error"),
    ),
    "sparse step (ms)": (
        "labels and ids",
        *("exact", "sampled", "BCOO, dense gradient", "PyTorch sparse"),
        *("BCOO / exact", "PyTorch / exact"),
    ),
    "learners on one device": (
        *("model, batch", "strategy, learners, way", "images/s"),
        "over one learner with parallel SGD",
    ),
    "merges": (
        "replicas x floats",
        *("average (us)", "copy into new memory (us)", "product in place (us)", "GB/s"),
        *("of the copy's rate (mark 0.6)", "of the product's rate"),
    ),
    "a training step, examples/s": (
        *("model, batch", "layers", "hetjax", "PyTorch", "ratio"),
        *("Tflop/s", "of the peak of an H100", "step (MB)"),
    ),
    "a mega-batch of Amazon-670k": (
        *("updates", "examples", "seconds", "seconds of compiling"),
        "seconds / those of the simulated GPUs",
    ),
}

_TINY_TURNS = ("--seconds=0.02", "--turns=1")
_TINY_SPARSE = ("--features=200", "--labels=4", "--batch=8", "--nonzeros=5")
# Tflop/s of an H100 or H200, without sparsity; float32 means TensorFloat-32
_PEAKS = {"bfloat16": 989, "float32": 495}
_TINY_LEARNERS = ("--models=lenet", "--batch_sizes=2", "--learners=1,2")
_TINY_MODEL = ("--models=resnet32", "--batch_size=2", "--seconds=0.01", "--turns=1")


def _local_sgd_part(model: str, rounds: int) -> Part:
    chosen = f"--models={model}"
    flags, tiny = (chosen, f"--rounds={rounds}"), (chosen, "--rounds=1")
    return Part("local_sgd", flags, tiny, "local SGD, replica-steps/s", _local_sgd)


def _sparse_part(labels: int) -> Part:
    chosen = ("--nomemory", "--repeats=3", f"--contenders={','.join(_SPARSE)}")
    flags, tiny = (*chosen, f"--labels={labels}"), (*chosen, *_TINY_SPARSE)
    return Part("sparse_step", flags, tiny, "sparse step (ms)", _sparse_step)


def _learners_part(model: str, sizes: str) -> Part:
    chosen = (f"--models={model}", f"--batch_sizes={sizes}", "--parts=speed")
    flags = (*chosen, "--seconds=0.3", "--turns=2")
    tiny = ("--parts=speed", *_TINY_LEARNERS, *_TINY_TURNS)
    return Part("learners", flags, tiny, "learners on one device", _learners)


def _model_part(model: str, size: int, dtype: str) -> Part:
    layers = f"--dtype={dtype}", f"--peak_tflops={_PEAKS[dtype]}"
    flags = (f"--models={model}", f"--batch_size={size}", "--turns=3", *layers)
    tiny = (*_TINY_MODEL, *layers)
    return Part("models", flags, tiny, "a training step, examples/s", _models)


PARTS: dict[str, Part] = {
    "tests": Part("cuda_tests", (), (), "tests on CUDA", _tests, 180.0),
    "overhead": Part(
        "overhead",
        ("--step_ms=1", "--seconds=0.4", "--turns=2"),
        ("--step_ms=0.1", *_TINY_TURNS),
        "threads, one worker",
        _overhead,
    ),
    "mesh_rounds": Part(
        "mesh",
        ("--parts=rounds", "--models=mlp784", "--seconds=0.3", "--turns=2"),
        ("--parts=rounds", "--models=mlp64", "--cpu_devices=1", *_TINY_TURNS),
        "mesh (us of a round)",
        _mesh_rounds,
    ),
    "learners_resnet32": _learners_part("resnet32", "16,64"),
    "learners_lenet": _learners_part("lenet", "16"),
    "gpu_and_cpu": Part(
        "real",
        (
            *("--devices=gpu:0,cpu:0", "--slowdown=1", "--seconds=3", "--runs=1"),
            "--strategies=biased_local_sgd,adaptive_sgd",
        ),
        (
            *("--hidden=32", "--seconds=0.5", "--runs=1"),
            "--strategies=biased_local_sgd,adaptive_sgd",
        ),
        "a GPU and a CPU in one process",
        _real,
    ),
    "local_sgd_mlp": _local_sgd_part("mlp", 5),
    "many_workers": Part(
        "many_workers",
        ("--workers=8,100,1000", "--runs=20", "--updates=4000", "--turns=2"),
        ("--workers=8", "--runs=2", "--updates=40", "--turns=1"),
        "many workers",
        _many_workers,
    ),
    "virtual": Part(
        "virtual",
        (
            *("--jobs=mlp784,cnn", "--updates=1000", "--turns=2"),
            "--strategies=async_sgd,local_sgd,ad_psgd",
        ),
        (
            *("--jobs=digits64", "--updates=70", "--turns=1"),
            "--strategies=async_sgd",
        ),
        "virtual clock (us of an update)",
        _virtual,
    ),
    "sparse_step_670091": _sparse_part(670_091),
    "merges": Part(
        "mesh",
        ("--parts=merges", "--floats=100000000", "--seconds=0.3", "--turns=3"),
        ("--parts=merges", "--floats=4000", "--replicas=4", *_TINY_TURNS),
        "merges",
        _merges,
    ),
    "mega_batch": Part(
        "mega_batch",
        ("--rows=120000",),
        (
            *("--rows=2000", "--features=2000", "--labels=1000"),
            *("--batch_size=16", "--seconds=0.5"),
        ),
        "a mega-batch of Amazon-670k",
        _mega_batch,
    ),
    "vit_b_bfloat16": _model_part("vit_b", 32, "bfloat16"),
    "local_sgd_cnn": _local_sgd_part("cnn", 3),
    "vit_b_float32": _model_part("vit_b", 32, "float32"),
    "sparse_step_40943": _sparse_part(40_943),
    "resnet50_bfloat16": _model_part("resnet50", 64, "bfloat16"),
    "resnet50_float32": _model_part("resnet50", 64, "float32"),
}


def measured(name: str, *, tiny: bool, left: float) -> dict[str, Any]:
    """A part's results in the remaining seconds ("found"), or why there are none."""
    if left < FEWEST_SECONDS:
        return {"left_out": "the time was up"}
    part, began = PARTS[name], time.monotonic()
    settings = part.tiny if tiny else part.flags
    module = f"experiments.benchmarks.{part.script}"
    result = output_of(["-m", module, *settings], min(left, part.longest))
    seconds = round(time.monotonic() - began, 1)
    outcome = {"failed": result["failed"]} if "failed" in result else {"found": result}
    return {"flags": list(settings), "seconds": seconds, **outcome}


def has_failed(part: dict[str, Any]) -> bool:
    """Whether a part of the file, or one of its tests, has failed."""
    return "failed" in part or bool(part.get("found", {}).get("failures"))


def markdown(found: dict[str, Any]) -> str:
    """The tables of the results, and a list of the missing ones."""
    about = found["about"]
    lines = [f"{about['device']}, JAX {about['jax']}, PyTorch {about['torch']}", ""]
    for table, header in TABLES.items():
        rows = [
            row
            for name, part in found["parts"].items()
            if "found" in part and PARTS[name].table == table
            for row in PARTS[name].rows(part["found"])
        ]
        if rows:
            lines += [f"**{table}**", "", _line(header), _line(["---"] * len(header))]
            lines += [*map(_line, rows), ""]
    for name, part in found["parts"].items():
        why = part.get("failed") or part.get("left_out")
        if why:
            lines.append(f"- {name}: {why}")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
