"""The workers of a real run, as shared by the clock and the threads."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from hetjax.engine.placement import Device
from hetjax.engine.programs.compilations import Compilations


class DeviceWorker(NamedTuple):
    """A worker's device and settings."""

    name: str
    device: Device
    slowdown: float  # its steps take this many times as long: it waits after each
    step_mode: str  # how K steps run
    factor: float = 1.0  # from a scripted fault, on top of the slowdown


class WorkerThreads:
    """The workers, the threads that run their assignments, and which ones compile."""

    def __init__(self, workers: Sequence[DeviceWorker], compilations: Compilations):
        """Start with no worker at work."""
        self.workers = list(workers)
        self.threads: dict[int, threading.Thread] = {}  # by worker with an assignment
        self._compilations = compilations

    def slow(self, worker: int, factor: float) -> None:
        """Make a worker's steps take `factor` times as long as at the start."""
        self.workers[worker] = self.workers[worker]._replace(factor=factor)

    def is_compiling(self, worker: int) -> bool:
        """Does a worker's thread wait for a compilation?"""
        thread = self.threads.get(worker)
        return thread is not None and self._compilations.is_compiling(thread)
