"""Rounds of local SGD on one device or along a mesh, in hand-written JAX.

All K workers begin a round with the same model, make T steps each, and are averaged:
one program, whose model is donated, for each round. Batches lie on the devices already;
a round takes the next of READY.

scan      steps in a loop; workers of a device one after the other, in Python
unrolled  as scan, with the steps unrolled
vmapped   as scan, with the workers of a device vmapped
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import hetjax as hj
from experiments.benchmarks import local_sgd_peers as peers
from experiments.benchmarks import turns
from experiments.benchmarks.turns import Contender

READY = 16  # rounds' batches
AXIS = "workers"
VARIANTS = ("scan", "unrolled", "vmapped")
Round = Callable[[Any, Any], tuple[Any, jax.Array]]  # params, batches -> params, losses


class Setting(NamedTuple):
    """K workers, T steps, B examples."""

    workers: int
    steps: int
    batch_size: int


def variants_for(name: str, devices: Sequence[Any], setting: Setting) -> list[str]:
    """The variants that are worth measuring.

    On a CPU a convolution in a loop, or vmapped, is several times slower.
    """
    if name == "cnn" and devices[0].platform == "cpu":
        return ["unrolled"]
    several = setting.workers > len(devices)
    return [v for v in VARIANTS if several or v != "vmapped"]


def contender(
    name: str,
    data: hj.data.Dataset,
    setting: Setting,
    devices: Sequence[Any],
    variant: str,
    *,
    feeds: bool = False,
) -> Contender:
    """Rounds of one variant on these devices.

    Batches are ready on the devices; or, if it `feeds`, drawn, gathered and sent for
    every round, while the one before it runs.
    """
    program, where, everywhere = programs(name, setting, devices, variant)
    number = 0 if feeds else READY
    ready = [jax.device_put(b, where) for b in make_batches(data, setting, number)]
    rng = np.random.default_rng(0)
    params = peers.MODELS[name][0](jax.random.key(0))
    params = jax.device_put(params, everywhere)

    def one_round(number: int) -> jax.Array:
        nonlocal params
        if feeds:
            batches = jax.device_put(make_batch(data, setting, rng), where)
        else:
            batches = ready[number % READY]
        params, losses = program(params, batches)
        return losses

    # programs with collectives that queue on several CPU devices can block each other
    queues = len(devices) == 1 or devices[0].platform != "cpu"
    return turns.by_hand(one_round, ahead=int(queues))


def make_batches(data: hj.data.Dataset, setting: Setting, number: int) -> list[Any]:
    """The batches of `number` rounds, on the host."""
    rng = np.random.default_rng(0)
    return [make_batch(data, setting, rng) for _ in range(number)]


def make_batch(
    data: hj.data.Dataset, setting: Setting, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A round's batches (x [K, T, B, ...], y [K, T, B]), on the host."""
    rows = rng.integers(len(data.train), size=setting)
    return data.train.x[rows], data.train.y[rows].astype(np.int32)


def programs(
    name: str, setting: Setting, devices: Sequence[Any], variant: str
) -> tuple[Round, Any, Any]:
    """The program of a round, and where batches and the model must be."""
    body = partial(_round, peers.loss_of(name), setting, variant)
    if len(devices) == 1:
        (device,) = devices
        return jax.jit(partial(body, None), donate_argnums=0), device, device
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    split, everywhere = PartitionSpec(AXIS), PartitionSpec()
    sharded = jax.shard_map(
        partial(body, AXIS),
        mesh=mesh,
        in_specs=(everywhere, split),
        out_specs=(everywhere, split),
        check_vma=False,
    )
    program = jax.jit(sharded, donate_argnums=0)
    return program, NamedSharding(mesh, split), NamedSharding(mesh, everywhere)


def _round(
    loss: Callable,
    setting: Setting,
    variant: str,
    axis: str | None,
    params: Any,
    batches: Any,
) -> tuple[Any, jax.Array]:
    """(the mean of the workers here, and along the axis; their last losses)."""

    def step(p: Any, batch: tuple) -> tuple[Any, jax.Array]:
        value, g = jax.value_and_grad(loss)(p, *batch)
        return jax.tree.map(lambda w, d: w - peers.RATE * d, p, g), value

    def local(p: Any, own: tuple) -> tuple[Any, jax.Array]:
        unroll = setting.steps if variant == "unrolled" else 1
        p, losses = lax.scan(step, p, own, unroll=unroll)
        return p, losses[-1]

    if variant == "vmapped":
        replicas, losses = jax.vmap(local, in_axes=(None, 0))(params, batches)
        mean = jax.tree.map(lambda w: jnp.mean(w, axis=0), replicas)
    else:
        here = range(batches[1].shape[0])
        each = [local(params, jax.tree.map(lambda a, i=i: a[i], batches)) for i in here]
        mean = jax.tree.map(lambda *ws: sum(ws) / len(ws), *[p for p, _ in each])
        losses = jnp.stack([value for _, value in each])
    return (mean if axis is None else lax.pmean(mean, axis)), losses
