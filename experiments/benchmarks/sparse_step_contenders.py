"""The contenders of `sparse_step.py`: one SGD step each, and the memory that it needs.

python sparse_step_contenders.py CONTENDER IDS LABELS --batch=... (from that script)
"""

import gc
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
from absl import flags

import hetjax as hj
from experiments.benchmarks import local_sgd_peers as peers
from experiments.common import bounds
from experiments.common.bounds import bounded
from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.engine.programs.task_programs import Programs
from hetjax.output.hashing import Hashing, HashTables
from hetjax.output.slide import PRESETS, RANGE_BITS
from hetjax.replica import Replica
from hetjax.tasks.classification import cross_entropy

FLAGS = flags.FLAGS
flags.DEFINE_integer("features", 135_909, "input features")
flags.DEFINE_integer("batch", 256, "examples of a step")
flags.DEFINE_integer("nonzeros", 76, "non-zeros of an example")
flags.DEFINE_integer("batches", 8, "different batches, taken in turn")
flags.DEFINE_integer("seed", 0, "seed of the data")
bounded("batch", *bounds.BATCH_SIZE)
bounded("batches", 1, 10_000, "all batches are held in memory")
bounded("seed", *bounds.SEED)
HIDDEN, LEARNING_RATE = 128, 0.1
NEVER = 10**9  # steps until SLIDE's tables are rebuilt
_SLIDE = PRESETS["paper"]
_SLIDE_EVERY = 50  # steps to the first rebuild, the default
_HASHING = Hashing(_SLIDE["hash"], _SLIDE["codes"], _SLIDE["tables"], RANGE_BITS)

flags.register_multi_flags_validator(
    ["features", "nonzeros"],
    lambda sizes: 0 < sizes["nonzeros"] <= sizes["features"],
    "an example cannot have more non-zeros than there are features",
)

Step = Callable[[int], Any]  # step(i) on batch i; its return value can be waited for


def make_data(ids: str, labels: int) -> hj.data.Dataset:
    """Rows with the same number of distinct features; ids by Zipf's law or uniform."""
    rng = np.random.default_rng(FLAGS.seed)
    rows, per_row, features = (
        FLAGS.batch * FLAGS.batches,
        FLAGS.nonzeros,
        FLAGS.features,
    )
    weights = 1 / np.arange(1, features + 1) if ids == "zipf" else np.ones(features)
    cumulative = np.cumsum(weights / weights.sum())
    places = rng.permutation(features)  # popular features lie anywhere in the matrix
    columns = np.empty((rows, per_row), np.int32)
    for row in columns:
        distinct = np.empty(0, np.int64)
        while len(distinct) < per_row:
            drawn = np.searchsorted(cumulative, rng.random(2 * per_row))
            distinct = np.unique(np.concatenate([distinct, drawn]))
        row[:] = places[np.minimum(rng.permutation(distinct)[:per_row], features - 1)]
    x = sp.csr_array(
        (
            np.full(rows * per_row, per_row**-0.5, np.float32),
            columns.reshape(-1),
            np.arange(0, rows * per_row + 1, per_row),
        ),
        shape=(rows, features),
    )
    y = rng.integers(labels, size=rows).astype(np.int32)
    return hj.data.from_arrays((x, y), (x[:1], y[:1]), num_classes=labels)


def hetjax_step(data: hj.data.Dataset, output: Any) -> Step:
    """The compiled step that every hetjax run uses; its replica is donated."""
    task = hj.classification(hj.models.sparse_mlp(hidden=HIDDEN), data, output=output)
    programs = Programs(task)
    step = programs.step(hj.local.sgd(), ())
    # in the memory of the initial parameters
    replica = Replica(*programs.init(jax.random.key(0)))
    batches, key_data = make_batches(data), np.zeros(3, np.uint32)

    def run(i: int) -> Any:
        nonlocal replica
        replica, _, loss = step(
            replica, batches[i], np.float32(LEARNING_RATE), key_data
        )
        return loss

    return run


def bcoo_step(data: hj.data.Dataset) -> Step:
    """The straightforward step: BCOO @ W, a dense gradient, donated parameters."""
    task = hj.classification(hj.models.sparse_mlp(hidden=HIDDEN), data)
    params, _ = jax.jit(task.init)(jax.random.key(0))
    batches = make_batches(data)

    def loss_fn(p: Any, batch: Batch) -> jax.Array:
        h = jax.nn.relu(batch.x @ p["kernel_in"] + p["bias_in"])
        return cross_entropy(h @ p["kernel_out"].T + p["bias_out"], batch.y).mean()

    @jax.jit
    def gradient_step(p: Any, batch: Batch) -> Any:
        loss, g = jax.value_and_grad(loss_fn)(p, batch)
        return jax.tree.map(lambda w, d: w - LEARNING_RATE * d, p, g), loss

    step = jax.jit(gradient_step, donate_argnums=0)

    def run(i: int) -> Any:
        nonlocal params
        params, loss = step(params, batches[i])
        return loss

    return run


def torch_step(data: hj.data.Dataset, *, sparse: bool) -> Step | None:
    """embedding_bag + linear, plain SGD; None where torch is missing.

    On a GPU, if JAX's default device is one.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    device = torch.device(peers.torch_device(torch))
    x, y = data.train.x, torch.from_numpy(data.train.y.astype(np.int64)).to(device)
    first = torch.nn.EmbeddingBag(FLAGS.features, HIDDEN, mode="sum", sparse=sparse)
    first, last = first.to(device), torch.nn.Linear(HIDDEN, data.num_classes).to(device)
    bias = torch.nn.Parameter(torch.zeros(HIDDEN, device=device))
    optimizer = torch.optim.SGD(
        [*first.parameters(), bias, *last.parameters()], LEARNING_RATE
    )
    batches = []
    for start in range(0, x.shape[0], FLAGS.batch):
        part = x[start : start + FLAGS.batch]
        arrays = part.indices.astype(np.int64), part.indptr[:-1].astype(np.int64)
        tensors = [torch.from_numpy(a).to(device) for a in (*arrays, part.data)]
        batches.append((tensors, y[start : start + FLAGS.batch]))

    def run(i: int) -> float | None:
        (ids, offsets, values), target = batches[i]
        optimizer.zero_grad()
        h = torch.relu(first(ids, offsets, per_sample_weights=values) + bias)
        loss = torch.nn.functional.cross_entropy(last(h), target)
        loss.backward()
        optimizer.step()
        # as JAX's, the steps queue until the last one is waited for
        return loss.item() if i == FLAGS.batches - 1 else None

    return run


def make_batches(data: hj.data.Dataset) -> list[Batch]:
    buckets = make_buckets(data.train, FLAGS.batch)
    rows = np.arange(len(data.train)).reshape(-1, FLAGS.batch)
    return [jax.device_put(make_batch(data.train, r, buckets)) for r in rows]


CONTENDERS: dict[str, Callable[[hj.data.Dataset], Step | None]] = {
    "chunked": partial(hetjax_step, output="chunked"),
    "full": partial(hetjax_step, output="full"),
    "sampled": partial(hetjax_step, output="sampled"),
    "slide": partial(hetjax_step, output=hj.output.slide(rebuild_every=NEVER)),
    "bcoo_dense_gradient": bcoo_step,
    "torch_sparse": partial(torch_step, sparse=True),
    "torch_dense": partial(torch_step, sparse=False),
}


def rebuilds(steps: int) -> int:
    """The number of rebuilds of SLIDE's tables in the first steps."""
    number, due = 0, float(_SLIDE_EVERY)
    while due <= steps:
        number += 1
        due += _SLIDE_EVERY * math.exp(_SLIDE["rebuild_decay"] * number)
    return number


def rebuild_seconds(data: hj.data.Dataset) -> float:
    """Seconds in which SLIDE's tables of this many labels are built."""
    w = jax.random.normal(jax.random.key(1), (data.num_classes, HIDDEN))
    build = jax.jit(lambda w: HashTables.build(w, _HASHING, jax.random.key(2)))
    jax.block_until_ready(build(w))
    began = time.perf_counter()
    jax.block_until_ready(build(w))
    return time.perf_counter() - began


def memory(name: str, ids: str, labels: int) -> dict[str, float] | None:
    """MB that a step needs beside parameters, state and input, and the ratio of both.

    None if the contender is missing, or the system does not report it.
    """
    data = make_data(ids, labels)
    status = Path("/proc/self/status")
    run = CONTENDERS[name](data)
    if run is None or not status.exists():
        return None
    jax.block_until_ready(run(0))  # compiles
    gc.collect()
    time.sleep(0.5)  # memory is released
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    for i in range(2):
        jax.block_until_ready(run(i % FLAGS.batches))
    extra = max(0, _status("VmHWM") - before)
    weights = FLAGS.features * HIDDEN + HIDDEN + labels * (HIDDEN + 1)
    rest = 4 * weights + 12 * FLAGS.batch * FLAGS.nonzeros
    if name == "slide":
        rest += 4 * _HASHING.tables * (labels + 2**_HASHING.bits + 1)
    return {
        "at_rest_mb": round(rest / 1e6, 1),
        "extra_mb": round(extra / 1e6, 1),
        "peak_over_rest": round((rest + extra) / rest, 3),
    }


def _status(field: str) -> int:
    """A field of this process's status [bytes]."""
    text = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return 1024 * int(fields[field].split()[0])


if __name__ == "__main__":
    _, contender, of_ids, number = FLAGS(sys.argv)
    print(json.dumps(memory(contender, of_ids, int(number))))
