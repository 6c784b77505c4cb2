"""What a run is given: the data in batches, the programs, and when to look."""

from pathlib import Path
from typing import NamedTuple

from hetjax.data.batching import Batch, Bucket
from hetjax.data.dataset import Dataset, Split
from hetjax.engine.compiled.compilations import Compilations
from hetjax.engine.compiled.programs import Programs

ON_NAN = ("stop", "reset")
ON_LOST_WORKER = ("continue", "stop")


class Job(NamedTuple):
    """What is trained, and how it is measured."""

    name: str  # of the run, in its history
    data: Dataset  # all of it
    programs: Programs
    compilations: Compilations  # of this run
    train: Split  # what is trained on: of the data, less what is held out
    buckets: tuple[Bucket, ...]
    test: list[Batch]  # the evaluation batches of
    num_test: int  # so many examples
    held_out: list[Batch]  # of the training split, for merges that measure
    num_held_out: int
    instants: tuple[float, ...]  # [s] of the evaluations, rising; the last is the end
    seed: int
    on_nan: str = "stop"  # one of ON_NAN
    on_lost_worker: str = "continue"  # one of ON_LOST_WORKER
    trace: str | Path | None = None  # the file that a real run is recorded in
