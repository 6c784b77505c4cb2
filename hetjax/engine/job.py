"""The job of a run: data, batches, programs, settings and evaluation instants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hetjax.data.batching import Batch, Bucket
from hetjax.data.dataset import Dataset, Split
from hetjax.engine.placement import Device
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.programs.task_programs import Programs

OnNan = Literal["stop", "reset"]
OnLostWorker = Literal["continue", "stop"]
Compiled = bool | Literal["auto"]
DataOn = Literal["auto", "device", "host"]


class Job(NamedTuple):
    """All inputs of a run except its strategy and machine."""

    name: str  # of the run, in its history
    data: Dataset  # the whole data set
    programs: Programs
    compilations: Compilations  # of this run
    train: Split  # the training split, without the examples that are held out
    buckets: tuple[Bucket, ...]
    test: Sequence[Batch]  # evaluation batches of the test split, or of a part of it
    num_test: int  # examples in them
    whole_test: Sequence[Batch]  # of the whole test split, if `test` is a part of it
    num_whole_test: int  # examples in the whole test split
    held_out: Sequence[Batch]  # from the training split, for merges that need metrics
    num_held_out: int  # examples that are held out
    # [s] of the evaluations, increasing; the last is the end of the run
    instants: tuple[float, ...]
    seed: int
    on_nan: OnNan = "stop"
    on_lost_worker: OnLostWorker = "continue"
    trace: str | Path | None = None  # the file in which a real run is recorded
    # of this host, over which simulated workers are spread; None: chosen by the runtime
    devices: Sequence[Device | str] | None = None
    # the file for machines that record every run, if `trace` is None; None: a temporary
    # file
    default_trace: Path | None = None
    continues: bool = False  # whether the run is resumed from a checkpoint
    compiled: Compiled = "auto"
    data_on: DataOn = "auto"
    # training data on devices, shared by runs; see `DeviceRows`
    on_devices: dict[Any, Any] | None = None
    schedule_seed: int | None = None  # of the clock and the sampler; None: the seed
    # of runs that are played at once; see `hetjax.runtimes.compiled.side_by_side`
    variants: Any = None
    tracks_best: bool = False  # whether the history has the best evaluation's model

    @property
    def schedule(self) -> int:
        """The seed of the clock and of the sampler."""
        return self.seed if self.schedule_seed is None else self.schedule_seed
