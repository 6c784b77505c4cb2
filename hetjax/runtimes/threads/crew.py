"""The workers of a real run, as the clock and the threads share them."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from hetjax.engine.compiled.compilations import Compilations
from hetjax.engine.placement import Device


class DeviceWorker(NamedTuple):
    """Where a worker works, and how."""

    name: str
    device: Device
    slowdown: float  # its steps take so many times as long: it waits after each
    step_mode: str  # how K steps run
    factor: float = 1.0  # of a scripted fault, on top of the slowdown


class Crew:
    """Who works where, how slow each is made, and who waits for XLA."""

    def __init__(self, workers: Sequence[DeviceWorker], compilations: Compilations):
        """Nobody is at work."""
        self.workers = list(workers)
        self.threads: dict[int, threading.Thread] = {}  # where assignments are
        self._compilations = compilations

    def slow(self, worker: int, factor: float) -> None:
        """A worker's steps take `factor` times as long as they did at first."""
        self.workers[worker] = self.workers[worker]._replace(factor=factor)

    def is_compiling(self, worker: int) -> bool:
        """Does a worker wait for XLA?"""
        thread = self.threads.get(worker)
        return thread is not None and self._compilations.is_compiling(thread)
