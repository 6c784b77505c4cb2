"""This machine's devices, from flags: which, how many of the CPU's, and how slow."""

import jax
from absl import flags

import hetjax as hj
from hetjax.run import LocalMachine

FLAGS = flags.FLAGS
flags.DEFINE_list("devices", [], "cpu:0, gpu, ...; default: all of this machine")
flags.DEFINE_integer("cpu_devices", None, "devices that the CPU is divided into")
flags.DEFINE_integer("learners", 1, "workers on every device")
flags.DEFINE_list("slowdown", [], "workers to slow on purpose, as cpu:1=3")
flags.DEFINE_string(
    "form", None, "how local steps run: dispatch, fused, unrolled, vmapped"
)


def machine() -> LocalMachine:
    """The real machine that the flags describe; before JAX was asked for devices."""
    if FLAGS.cpu_devices is not None:
        jax.config.update("jax_num_cpu_devices", FLAGS.cpu_devices)
    # a worker's thread runs its own steps: what would run them besides only adds
    # latency, a tenth of a millisecond for each program
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return hj.local_machine(
        FLAGS.devices or None,
        learners=FLAGS.learners,
        slowdown=dict(map(_slowdown, FLAGS.slowdown)),
        form=FLAGS.form,
    )


def _slowdown(text: str) -> tuple[str, float]:
    name, equals, number = text.rpartition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ValueError(
            f"--slowdown={text}: write worker=factor, as cpu:1=3"
        ) from None
