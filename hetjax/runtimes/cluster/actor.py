"""A member: one worker's process, with its device, its data and what it has learned.

It is a plain class, whose methods the driver calls. Of each queue (see `calls`) they
are done one by one, in the order in which they were called.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import jax
import numpy as np

from hetjax.data.dataset import Dataset, Split
from hetjax.data.held_out import FEW, split_off
from hetjax.engine.job import Job
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.programs.sharing import programs_of
from hetjax.recipes import make
from hetjax.runtimes.cluster.actor_run import ActorRun
from hetjax.runtimes.cluster.mapped import Portable, opened
from hetjax.runtimes.cluster.messages import ActorDevice, ActorStatus, RunSettings
from hetjax.runtimes.devices import default_device
from hetjax.tracing.fingerprint import data_fingerprint

DATA_SETS = 2  # that a member keeps: those of the last runs


class WorkerActor:
    """What an actor of the cluster does."""

    def __init__(self, name: str, platform: str | None):
        """A worker of this name; `platform`: the only one that JAX may use."""
        self._name = name
        if platform is not None:
            jax.config.update("jax_platforms", platform)
        # the steps run on a thread of their own: JAX's would only add latency
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._device = default_device()
        self._known: dict[str, Any] = {}
        self._data: dict[str, tuple[Split, np.ndarray | None]] = {}
        self._counting = ExitStack()
        self._run: ActorRun | None = None

    def __repr__(self) -> str:
        return f"hetjax {self._name}"

    def about(self) -> ActorDevice:
        """Describe the device and the process."""
        device = self._device
        return ActorDevice(
            device.device_kind, device.platform, os.getpid(), socket.gethostname()
        )

    # -- what runs are made of ----------------------------------------------------

    def learn(self, key: str, thing: Any, forget: Sequence[str]) -> None:
        """Keep something that runs are made of, under a key; `forget` these keys."""
        for old in forget:
            del self._known[old]
        self._known[key] = thing

    def load(
        self,
        key: str,
        recipe: dict[str, Any],
        fingerprint: dict[str, Any],
        held_out_seed: int | None,
        rows: np.ndarray | None,
    ) -> None:
        """Load a data set by its recipe, and keep its training split, or rows of it.

        Errors: ValueError if it is not the driver's, or whatever its reader raises.
        """
        data = make(recipe, {})
        found = data_fingerprint(data)
        if found != fingerprint:
            raise ValueError(
                f"{self._name} on {socket.gethostname()} reads other data from "
                f"{recipe['function']} than the driver: {found}, not {fingerprint}; "
                "give all nodes the same files"
            )
        train = data.train
        if held_out_seed is not None:
            train, _ = split_off(train, held_out_seed, FEW)
        self._keep(key, train if rows is None else train.take(rows), rows)

    def receive(self, key: str, train: Portable, rows: np.ndarray | None) -> None:
        """Keep a training split, or these rows of one.

        Errors: OSError or ValueError for a memory map that is not here, or differs.
        """
        try:
            self._keep(key, opened(train), rows)
        except (OSError, ValueError) as error:
            raise type(error)(
                f"{self._name} on {socket.gethostname()}: {error}; give all nodes the "
                "same files"
            ) from error

    def _keep(self, key: str, train: Split, rows: np.ndarray | None) -> None:
        for old in list(self._data)[: 1 - DATA_SETS]:
            del self._data[old]
        self._data[key] = train, rows

    def open(self, opening: RunSettings) -> None:
        """Begin a run; what is left of another one is forgotten."""
        programs = programs_of(self._known[opening.task])
        train, rows = self._data[opening.data]
        self._counting.close()
        compilations = Compilations()
        self._counting.enter_context(compilations.counting())
        job = Job(
            name="member",
            data=Dataset(train, train.take(np.zeros(0, np.int64))),
            programs=programs,
            compilations=compilations,
            train=train,
            buckets=opening.buckets,
            test=(),
            num_test=0,
            whole_test=(),
            num_whole_test=0,
            held_out=(),
            num_held_out=0,
            instants=(),
            seed=opening.seed,
            on_nan=opening.on_nan,
        )
        settings = self._known[opening.settings]
        self._run = ActorRun(opening, settings, job, rows, self._device)

    # -- the run that is open ------------------------------------------------------

    def do(self, method: str, *args: Any) -> Any:
        """Call a method of the run that is open."""
        assert self._run is not None, "no run is open"
        return getattr(self._run, method)(*args)

    def end_run(self) -> dict[str, int]:
        """Forget the run that is open; return what it compiled, by purpose."""
        run, self._run = self._run, None
        self._counting.close()
        return {} if run is None else dict(run.job.compilations.programs)

    def status(self) -> ActorStatus:
        """How the member is."""
        run = self._run
        return ActorStatus(run is not None and run.job.compilations.busy)
