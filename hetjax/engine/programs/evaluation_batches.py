"""Evaluation: the batches of a whole split, and mean metrics over them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from hetjax.data.batching import Batch, Bucket, Need, lengths_of, make_batch
from hetjax.data.columns import in_memory, leaves_of, row_bytes
from hetjax.data.dataset import Dataset, Split
from hetjax.data.held_out import fixed_subset
from hetjax.engine.placement import Device
from hetjax.engine.programs.task_programs import Programs
from hetjax.tasks.task_checks import batch_of
from hetjax.tree import ModelState, Params

EVAL_EXAMPLES = 1024  # examples of an evaluation batch, at most
EVAL_NUMBERS = 2**26  # logits, or other numbers, of an evaluation batch, at most
MAX_RESIDENT = 2**30  # bytes of a split's dense arrays on the device, at most
MAX_IN_FLIGHT = 2  # evaluation batches; more would need more memory


@dataclass(frozen=True, eq=False)
class BatchesWhenUsed(Sequence[Batch]):
    """The evaluation batches of a large split, each made on access."""

    split: Split
    pieces: Sequence[np.ndarray]  # the rows of each batch
    bucket: Bucket
    exact: bool  # whether the last batch is not padded
    device: Device | None = None  # None leaves the choice to JAX

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Batch:  # pyright: ignore
        rows = self.pieces[index]
        batch = make_batch(self.split, rows, (self.bucket,), exact=self.exact)
        return jax.device_put(batch, self.device)


def evaluation_batches(
    split: Split, numbers: int, *, exact: bool = False
) -> Sequence[Batch]:
    """Return a split as batches of one shape, on the device.

    With `exact` the last batch is not padded, and may have another shape. `numbers` is
    how many numbers of an example, such as logits, are in memory at once. The batches
    of a split that is large, or not in memory, are made on access.
    """
    most = EVAL_NUMBERS // max(1, numbers)
    size = min(EVAL_EXAMPLES, max(1, most), len(split))
    pieces = np.split(np.arange(len(split)), range(size, len(split), size))
    buckets = [_exact_bucket(split, rows, size) for rows in pieces]
    every = zip(*(b.capacities for b in buckets), strict=True)
    bucket = Bucket(size, tuple(max(column) for column in every))
    batches = BatchesWhenUsed(split, pieces, bucket, exact)
    columns = split.x, split.y
    small = row_bytes(columns) * len(split) <= MAX_RESIDENT
    if small and all(map(in_memory, leaves_of(columns))):
        return list(batches)
    return batches


def batches_on(batches: Sequence[Batch], device: Device | None) -> Sequence[Batch]:
    """Return evaluation batches on a device; None leaves them where they are."""
    if device is None:
        return batches
    if isinstance(batches, BatchesWhenUsed):
        return replace(batches, device=device)
    return jax.device_put(batches, device)


def numbers_per_example(programs: Programs, split: Split) -> int:
    """Return by how much the largest array of an evaluation grows with each example.

    The program is traced for two and for four examples; it is not compiled.
    """
    task = programs.task
    model = programs.model_like
    of_two, of_four = (
        _sizes(jax.make_jaxpr(task.metrics)(*model, batch_of(split, size)).jaxpr)
        for size in (2, 4)
    )
    return max((b - a for a, b in zip(of_two, of_four, strict=False)), default=0) // 2


def _sizes(program: Any) -> Iterator[int]:
    """Yield the size of every array in a traced program, inner programs included."""
    for line in program.eqns:
        yield from (int(np.prod(out.aval.shape)) for out in line.outvars)
        for inner in jax.tree.leaves(list(line.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _sizes(inner)


def _exact_bucket(split: Split, rows: np.ndarray, size: int) -> Bucket:
    """Return the smallest bucket of `size` examples that holds these rows."""
    entries = Need.of(lengths_of((split.x, split.y), rows)).entries(size)
    return Bucket(size, tuple(max(1, e) for e in entries))


def mean_metrics(
    programs: Programs, model: tuple[Params, ModelState], batches: Iterable[Batch]
) -> dict[str, float]:
    """Return mean metrics over all examples; the loss over those with a weight."""
    sums: list[dict[str, Any]] = []
    for batch in batches:
        sums.append(programs.evaluate(*model, batch))
        jax.block_until_ready(sums[-MAX_IN_FLIGHT:][0])
    return means_of(programs, sums)


def means_of(programs: Programs, sums: list[dict[str, Any]]) -> dict[str, float]:
    """Return mean metrics from the (sum, count) of every batch."""
    means = {}
    for name in ("loss", *sums[0]):
        total, count = (
            float(sum(np.asarray(s[name][i], np.float64) for s in sums))
            for i in range(2)
        )
        means[name] = total / count if count else float("nan")  # such as no labels
    return programs.task.finish(means)


def batches_of(programs: Programs, split: Split, num_classes: int) -> Sequence[Batch]:
    """Return a split's evaluation batches; a head needs no array of all scores."""
    exact = programs.task.batch_coupled
    if programs.task.head is not None:
        return evaluation_batches(split, 1, exact=exact)
    numbers = num_classes or numbers_per_example(programs, split)
    return evaluation_batches(split, numbers, exact=exact)


def evaluation_sets(
    programs: Programs, data: Dataset, eval_examples: int | None
) -> dict[str, Any]:
    """Return a job's fields about the test split, or `eval_examples` of it."""
    part = fixed_subset(data.test, eval_examples)
    batches = partial(batches_of, programs, num_classes=data.num_classes)
    return {
        "test": batches(part),
        "num_test": len(part),
        "whole_test": [] if part is data.test else batches(data.test),
        "num_whole_test": len(data.test),
    }
