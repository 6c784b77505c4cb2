"""The job of a run: data, batches, programs, settings and evaluation instants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hetjax.data.batching import Batch, Bucket
from hetjax.data.dataset import Dataset, Split
from hetjax.engine.placement import Device
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.programs.task_programs import Programs

ON_NAN = ("stop", "reset")
ON_LOST_WORKER = ("continue", "stop")
COMPILED = ("auto", True, False)
DATA_ON = ("auto", "device", "host")


class Job(NamedTuple):
    """Everything that a run is given besides its strategy and machine."""

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
    instants: tuple[float, ...]  # [s] of the evaluations, rising; the last is the end
    seed: int
    on_nan: str = "stop"  # one of ON_NAN
    on_lost_worker: str = "continue"  # one of ON_LOST_WORKER
    trace: str | Path | None = None  # the file in which a real run is recorded
    # of this host, over which simulated workers are spread; None: they are chosen
    devices: Sequence[Device | str] | None = None
    # the file for machines that record each run, where `trace` names none; None: a
    # temporary one
    default_trace: Path | None = None
    continues: bool = False  # is the run continued from a checkpoint?
    compiled: bool | str = "auto"  # one of COMPILED
    data_on: str = "auto"  # one of DATA_ON
    # training data on devices, of all runs that share them; see `DeviceRows`
    on_devices: dict[Any, Any] | None = None
    schedule_seed: int | None = None  # of the clock and the sampler; None: the seed
    # runs that are played together; see `hetjax.runtimes.compiled.side_by_side`
    variants: Any = None
    tracks_best: bool = False  # does the history keep the model of the best evaluation?

    @property
    def schedule(self) -> int:
        """The seed of what happens when, and of who draws which examples."""
        return self.seed if self.schedule_seed is None else self.schedule_seed
