"""The actor of a worker: its process, with its device, data, programs and replica.

`WorkerActor` is a plain class whose methods the driver calls. The calls of one queue
(see `worker_group`) run one by one, in the order in which they were made.
"""

import os
import socket
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hetjax.data.batching import Bucket
from hetjax.data.dataset import Dataset, Split
from hetjax.data.held_out import FEW, split_off
from hetjax.data.portable import open_portable
from hetjax.engine.job import Job, OnNan
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.programs.sharing import programs_of
from hetjax.recipes import make
from hetjax.runtimes.cluster.actor_run import ActorRun
from hetjax.runtimes.devices import default_device
from hetjax.tracing.fingerprint import data_fingerprint

MAX_STORED = 16  # tasks and settings that an actor stores, the last used ones
MAX_DATA_SETS = 2


class ActorDevice(NamedTuple):
    """The device and the process of an actor."""

    kind: str
    platform: str
    process: int
    host: str


class SharedValue(Protocol):
    """A value in the cluster, which each node fetches once."""

    def get(self) -> Any:
        """Return the value."""
        ...


class Stored(NamedTuple):
    """A value that an actor fetches unless it stores it under this key."""

    key: str
    shared: SharedValue


class DataSource(NamedTuple):
    """Where an actor gets its training split, or these `rows` of it."""

    key: str  # equal keys mean equal data
    rows: np.ndarray | None
    held_out_seed: int | None
    fingerprint: dict[str, Any]  # of the driver's data
    recipe: dict[str, Any] | None  # to load the data set
    portable: SharedValue | None  # the rows, if there is no recipe


class RunSettings(NamedTuple):
    """The settings of a run for one actor."""

    worker: int  # its index in the run
    step_settings: Stored  # `StepSettings`
    task: Stored
    data: DataSource
    seed: int
    buckets: tuple[Bucket, ...]
    on_nan: OnNan
    slowdown: float


class WorkerActor:
    """The class that every actor of the cluster is an instance of."""

    def __init__(self, name: str, platform: str | None):
        """Set up the worker `name`; a given `platform` is the only one JAX may use."""
        self._name = name
        if platform is not None:
            jax.config.update("jax_platforms", platform)
        # the steps have their own thread: asynchronous dispatch would add latency
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._device = default_device()
        self._stored: dict[str, Any] = {}  # the last used ones last
        self._data: dict[str, Split] = {}
        self._counting = ExitStack()
        self._run: ActorRun | None = None

    def __repr__(self) -> str:
        return f"hetjax {self._name}"

    def describe(self) -> ActorDevice:
        """Describe the device and the process."""
        device = self._device
        return ActorDevice(
            device.device_kind, device.platform, os.getpid(), socket.gethostname()
        )

    def is_compiling(self) -> bool:
        """Answer a health check."""
        run = self._run
        return run is not None and run.job.compilations.busy

    # -- values that runs need ---------------------------------------------------------

    def _fetched(self, value: Stored) -> Any:
        found = self._stored.pop(value.key, None)
        self._stored[value.key] = value.shared.get() if found is None else found
        for old in list(self._stored)[:-MAX_STORED]:
            del self._stored[old]
        return self._stored[value.key]

    def _split(self, source: DataSource) -> Split:
        """Get the training split, or these rows of it.

        Errors: ValueError if the data differ from the driver's; the reader's errors;
        OSError or ValueError for a memory map that is missing, or differs.
        """
        if source.key not in self._data:
            found = self._load(source) if source.recipe else self._receive(source)
            for old in list(self._data)[: 1 - MAX_DATA_SETS]:
                del self._data[old]
            self._data[source.key] = found
        return self._data[source.key]

    def _load(self, source: DataSource) -> Split:
        assert source.recipe is not None
        data = make(source.recipe, {})
        found = data_fingerprint(data)
        if found != source.fingerprint:
            raise ValueError(
                f"{self._name} on {socket.gethostname()} reads other data from "
                f"{source.recipe['function']} than the driver: {found}, not "
                f"{source.fingerprint}; all nodes must have the same files"
            )
        train = data.train
        if source.held_out_seed is not None:
            train, _ = split_off(train, source.held_out_seed, FEW)
        return train if source.rows is None else train.take(source.rows)

    def _receive(self, source: DataSource) -> Split:
        assert source.portable is not None
        try:
            return open_portable(source.portable.get())
        except (OSError, ValueError) as error:
            raise type(error)(
                f"{self._name} on {socket.gethostname()}: {error}; all nodes must have "
                "the same files"
            ) from error

    # -- runs --------------------------------------------------------------------------

    def open_run(self, run_settings: RunSettings) -> None:
        """Open a run, in place of the one that is open."""
        train = self._split(run_settings.data)
        settings = self._fetched(run_settings.step_settings)
        programs = programs_of(self._fetched(run_settings.task))
        self._counting.close()
        compilations = Compilations()
        self._counting.enter_context(compilations.counting())
        job = Job(
            name="actor",
            data=Dataset(train, train.take(np.zeros(0, np.int64))),
            programs=programs,
            compilations=compilations,
            train=train,
            buckets=run_settings.buckets,
            test=(),
            num_test=0,
            whole_test=(),
            num_whole_test=0,
            held_out=(),
            num_held_out=0,
            instants=(),
            seed=run_settings.seed,
            on_nan=run_settings.on_nan,
        )
        self._run = ActorRun(
            run_settings.worker,
            settings,
            job,
            self._device,
            rows=run_settings.data.rows,
            slowdown=run_settings.slowdown,
        )

    def call_run(self, method: str, *args: Any) -> Any:
        """Call a method of the open run."""
        assert self._run is not None, "no run is open"
        return getattr(self._run, method)(*args)

    def post_run(self, method: str, *args: Any) -> None:
        """Call a method of the open run; its error is that of the next report."""
        assert self._run is not None, "no run is open"
        self._run.post(method, *args)

    def end_run(self) -> dict[str, int]:
        """End the open run; return the numbers of compiled programs, by purpose."""
        run, self._run = self._run, None
        self._counting.close()
        return {} if run is None else dict(run.job.compilations.programs)
