"""One SGD step of the sparse 3-layer MLP: hetjax, dense-gradient BCOO, PyTorch.

    python experiments/benchmarks/sparse_step.py        (two minutes, idle machine)

Amazon-670k's input layer: 135,909 features x 128 hidden, batches of 256 rows with 76
non-zeros, feature ids by Zipf's law or uniform; 128 and 40,943 labels. One JSON object
on standard output: median seconds per step and their ratios, from one run. PyTorch
(sparse embedding_bag + linear) is null where it is not installed.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp
from absl import flags

import hetjax as hj
from experiments.benchmarks import local_sgd_peers as peers
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.data.batching import Batch, make_batch, make_buckets
from hetjax.engine.compiled.programs import Programs
from hetjax.replica import Replica
from hetjax.task.classification import cross_entropy

FLAGS = flags.FLAGS
flags.DEFINE_integer("features", 135_909, "input features")
flags.DEFINE_list("labels", ["128", "40943"], "numbers of labels to measure with")
flags.DEFINE_integer("batch", 256, "examples of a step")
flags.DEFINE_integer("nonzeros", 76, "non-zeros of an example")
flags.DEFINE_integer("batches", 8, "different batches, taken in turn")
flags.DEFINE_integer("repeats", 7, "timings to take the median of")
flags.DEFINE_integer("seed", 0, "seed of the data")
bounded("batch", *bounds.BATCH_SIZE)
bounded("batches", 1, 10_000, "all batches are kept in memory")
bounded("repeats", 1, 10_000, "every repetition is run")
bounded("seed", *bounds.SEED)
HIDDEN, LEARNING_RATE = 128, 0.1

flags.register_validator(
    "labels",
    lambda texts: all(t.isdigit() and 0 < int(t) < 2**31 for t in texts),
    "give whole numbers of at least 1",
)
flags.register_multi_flags_validator(
    ["features", "nonzeros"],
    lambda sizes: 0 < sizes["nonzeros"] <= sizes["features"],
    "an example cannot have more non-zeros than there are features",
)


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


def hetjax_step(data: hj.data.Dataset) -> Callable[[int], Any]:
    """The compiled step that every hetjax run uses; its replica is donated."""
    task = hj.classification(hj.models.sparse_mlp(hidden=HIDDEN), data)
    programs = Programs(task)
    step = programs.step(hj.local.sgd(), ())
    replica = Replica(*programs.copies(programs.init(jax.random.key(0))))
    batches, key_data = make_batches(data), np.zeros(3, np.uint32)

    def run(i: int) -> Any:
        nonlocal replica
        replica, _, loss = step(
            replica, batches[i], np.float32(LEARNING_RATE), key_data
        )
        return loss

    return run


def bcoo_step(data: hj.data.Dataset) -> Callable[[int], Any]:
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


def torch_step(data: hj.data.Dataset) -> Callable[[int], Any] | None:
    """Sparse embedding_bag + linear, plain SGD; None where torch is missing.

    On a GPU, if JAX's default device is one.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    device = torch.device(peers.torch_device(torch))
    x, y = data.train.x, torch.from_numpy(data.train.y.astype(np.int64)).to(device)
    first = torch.nn.EmbeddingBag(FLAGS.features, HIDDEN, mode="sum", sparse=True)
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


def median_seconds(steps: dict[str, Callable | None]) -> dict[str, float | None]:
    """Median seconds per step.

    The contenders take turns, so that disturbances affect all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(FLAGS.repeats + 1):  # the first one compiles
        for name, step in steps.items():
            if step is None:
                continue
            began = time.perf_counter()
            for i in range(FLAGS.batches):
                result = step(i)
            jax.block_until_ready(result)
            if repeat:
                seconds[name].append((time.perf_counter() - began) / FLAGS.batches)
    return {n: float(np.median(s)) if s else None for n, s in seconds.items()}


def measure(ids: str, labels: int) -> dict[str, Any]:
    data = make_data(ids, labels)
    size = FLAGS.batch * FLAGS.nonzeros
    unique = [
        len(np.unique(data.train.x.indices[i : i + size]))
        for i in range(0, data.train.x.nnz, size)
    ]
    steps = {
        "hetjax": hetjax_step(data),
        "bcoo_dense_gradient": bcoo_step(data),
        "torch_sparse": torch_step(data),
    }
    return {
        "unique_rows": int(np.median(unique)),
        "nonzeros": size,
        "seconds": median_seconds(steps),
    }


def ratios(seconds: dict[str, float | None]) -> dict[str, float | None]:
    own = seconds["hetjax"]
    assert own is not None
    return {
        f"{other}_over_hetjax": None if value is None else round(value / own, 3)
        for other, value in seconds.items()
        if other != "hetjax"
    }


def main() -> None:
    result: dict[str, Any] = {"ratios": {}, "medians": {}}
    for labels in map(int, FLAGS.labels):
        for ids in ("zipf", "uniform"):
            print(f"{labels} labels, {ids} ids ...", file=sys.stderr)
            measured = measure(ids, labels)
            name = f"{labels}/{ids}"
            result["medians"][name] = measured
            for other, ratio in ratios(measured["seconds"]).items():
                result["ratios"][f"{name}/{other}"] = ratio
    result["jax"], result["platform"] = jax.__version__, jax.default_backend()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    scripts.run(main)
