"""Devices of this host from flags: for real workers, or to simulate workers on."""

import jax
from absl import flags

import hetjax as hj
from experiments.common import bounds
from experiments.common.bounds import DEVICES, bounded
from hetjax.api import LocalMachine
from hetjax.runtimes.threads.local_machine import PlacementName

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "devices",
    [],
    "cpu:0, gpu, ...; default: all devices of this host, or to compare on a "
    "simulated machine, all GPUs or one CPU device",
)
flags.DEFINE_integer("cpu_devices", None, "devices that the CPU is divided into")
flags.DEFINE_integer("workers_per_device", 1, "workers on every device")
flags.DEFINE_list("slowdown", [], "workers to slow down, as cpu:1=3, or vm/cpu:1=3")
flags.DEFINE_string(
    "step_mode", None, "how local steps run: dispatch, fused, unrolled, vmapped"
)
bounded("cpu_devices", *DEVICES)
bounded("workers_per_device", *DEVICES)


def divide_cpu() -> None:
    """Divide the CPU into --cpu_devices. Call this before JAX lists devices."""
    if FLAGS.cpu_devices is not None:
        jax.config.update("jax_num_cpu_devices", FLAGS.cpu_devices)


MACHINES: dict[str, PlacementName] = {  # their placements
    "local": "threads",
    "mesh": "mesh",
    "auto": "auto",
}


def machine(placement: PlacementName = "threads") -> LocalMachine:
    """The real machine that the flags describe. Call this before JAX lists devices."""
    divide_cpu()
    if placement == "threads":
        # a worker's thread runs its own steps: JAX's dispatch thread would only add
        # latency, a tenth of a millisecond per program
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    return hj.local_machine(
        FLAGS.devices or None,
        workers_per_device=FLAGS.workers_per_device,
        slowdown=slowdowns(),
        step_mode=FLAGS.step_mode,
        placement=placement,
    )


def slowdowns() -> dict[str, float]:
    """The slowdowns of workers that --slowdown names."""
    return bounds.named_numbers("slowdown", FLAGS.slowdown, "worker=factor, as cpu:1=3")
