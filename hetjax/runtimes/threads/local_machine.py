"""Real machines: the devices of this process as workers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from hetjax.arguments import Count, checked
from hetjax.engine.placement import Device
from hetjax.machine import ScriptedFault
from hetjax.runtimes.devices import all_devices, chosen_devices, device_name
from hetjax.runtimes.real.real_machine import (
    RealMachine,
    Slowdown,
    Slowdowns,
    slowdowns_of,
)
from hetjax.summaries import counted

StepMode = Literal["dispatch", "fused", "unrolled", "vmapped", None]
PlacementName = Literal["threads", "mesh", "auto"]


@checked
@dataclass(frozen=True)
class LocalWorker:
    """A worker on a real device."""

    name: str
    device: Device
    slowdown: Slowdown = 1.0  # on the time of a step: it waits after each

    @property
    def kind(self) -> str:
        """The kind of device; workers of one kind run the same programs."""
        return self.device.device_kind

    @property
    def device_name(self) -> str:
        """The name of the device, which several workers may share."""
        return device_name(self.device)


@checked
@dataclass(frozen=True)
class LocalMachine(RealMachine):
    """Real workers and their scripted faults, as built by `hetjax.local_machine`."""

    record_name: ClassVar[str] = "local"

    workers: tuple[LocalWorker, ...]
    faults: tuple[ScriptedFault, ...] = ()
    step_mode: StepMode = None  # how K local steps run; None: measure and choose
    placement: PlacementName = "threads"

    def __repr__(self) -> str:
        number = counted(len(self.workers), "real worker")
        return self.summary(f"Machine: {number} as {self.placement}")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device once, in the order of workers."""
        return tuple({w.device: None for w in self.workers})

    def most_per_device(self, kind: str) -> int:
        """Return the largest number of workers that share a device of this kind."""
        return max(Counter(w.device for w in self.workers if w.kind == kind).values())


@checked
def local_machine(
    devices: Sequence[Device] | None = None,
    *,
    workers_per_device: Count = 1,
    slowdown: Slowdowns = 1.0,
    faults: Sequence[ScriptedFault] = (),
    step_mode: StepMode = None,
    placement: PlacementName = "threads",
) -> LocalMachine:
    """Return the devices of this process as a machine on which runs are real.

    `devices` are JAX devices, or names such as "cpu:1", "gpu:0", or "cuda" for all
    devices of a platform; by default all devices of all platforms are used.
    `workers_per_device` workers share each device. `slowdown` deliberately makes
    workers slower: they wait after each step, or after all steps that run in one
    program. It is one number, one for each worker, or {name: number}. `faults` are
    scripted faults (`machine.ScriptedFault`). `step_mode` forces how K local steps run,
    one of "dispatch", "fused", "unrolled", "vmapped" (workers of a device that begin at
    the same time, with the same slowdown, run in one program); by default a short
    measurement decides.

    `placement="threads"` runs every worker in its own thread: any strategy on any
    devices. "mesh" runs all workers as one program on devices of one kind, with equally
    many workers on each; it supports bulk-synchronous strategies without slowdowns and
    faults, and is not recorded. "auto" chooses a mesh where possible; the history's
    `placement` says what it chose and why. In a run of several processes
    (`jax.distributed`) a mesh has the devices of all processes, and threads have those
    of one.

    For several CPU devices call `jax.config.update("jax_num_cpu_devices", 4)` before
    any other use of JAX. Errors: ValueError for a device that does not exist, or for
    an invalid slowdown.
    """
    # a mesh may span several processes
    several = placement != "threads" and jax.process_count() > 1
    known = jax.devices() if several else all_devices()
    chosen = known if devices is None else chosen_devices(devices, known)
    names = [
        f"{device_name(d)}/{i}" if workers_per_device > 1 else device_name(d)
        for d in chosen
        for i in range(workers_per_device)
    ]
    repeated = [d for d in chosen for _ in range(workers_per_device)]
    workers = tuple(
        LocalWorker(*fields)
        for fields in zip(names, repeated, slowdowns_of(slowdown, names), strict=True)
    )
    return LocalMachine(workers, tuple(faults), step_mode, placement)
