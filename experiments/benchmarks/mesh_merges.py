"""Merges alone: averaging a tuple of replicas on one device, and along a mesh.

See `mesh.py`, which runs this. Replicas are LEAVES arrays of constants, and donated.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

import hetjax as hj
from experiments.benchmarks import turns
from experiments.benchmarks.memory import misfit
from experiments.benchmarks.turns import Contender
from hetjax.merge import Merge

LEAVES = 4
AXIS = "workers"
MERGES = {
    "psum": hj.merge.average(),
    "gathered": hj.merge.average()._replace(
        properties=hj.merge.MergeProperty.BROADCASTS
    ),
}


def measure_tuple(
    replicas: int, floats: int, device: Any, seconds: float, number: int
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Rates of averaging a number of replicas of a size, and of copying them."""
    key = f"merges/{replicas}x{millions(floats)}"
    # the replicas twice for a copy, the merge's state, and its sums
    why = misfit(4 * floats * (2 * replicas + 4), [device])
    if why:
        return {key: None}, {"skipped": why}
    contenders = _on_one_device(replicas, floats, device)
    found = turns.in_turn(contenders, seconds, number, key)
    moved = 2 * replicas * 4 * LEAVES * (floats // LEAVES)  # bytes, read and written
    best = turns.fastest(found, "copy")
    raw = turns.microseconds(found)
    rates = {f"{who}_GB_per_s": moved / (1e3 * raw[f"{who}_us"]) for who in found}
    raw |= {who: round(rate, 3) for who, rate in rates.items()}
    return {key: round(turns.ratio(found[best], found["average"]), 3)}, raw


def _on_one_device(replicas: int, floats: int, device: Any) -> dict[str, Contender]:
    """The merge, and two programs that read and write the same bytes.

    A copy needs new memory, which a host gets page by page; a product with one is in
    place, as the merge is.
    """
    merge = hj.merge.average()
    held: Any = tuple(
        hj.Replica(jax.device_put(_leaves(floats, float(k)), device))
        for k in range(replicas)
    )
    state = jax.device_put(merge.init(held[0].params), device)
    stats = hj.merge.stats([8] * replicas)
    average = jax.jit(partial(_apply, merge), donate_argnums=(0, 1))
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
    scale = jax.jit(
        lambda tree, by: jax.tree.map(lambda x: by * x, tree), donate_argnums=0
    )

    def merged(number: int) -> Any:
        nonlocal state, held
        state, held = average(state, held, stats)
        return state, held

    def scaled(number: int) -> Any:
        nonlocal held
        held = scale(held, np.float32(1))
        return held

    return {
        "average": turns.by_hand(merged),
        "copy": turns.by_hand(lambda number: copy(held)),
        "copy_in_place": turns.by_hand(scaled),
    }


def measure_axis(
    floats: int, devices: Sequence[Any], seconds: float, number: int
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Seconds of averaging one replica on each device: `psum` and gathered."""
    n = len(devices)
    key = f"merges/{n}dev/{millions(floats)}"
    raw: dict[str, Any] = {}
    contenders: dict[str, Contender] = {}
    # on a device: replica, state, and sums; gathered, all replicas before and after
    for name, copies in {"psum": 6, "gathered": 6 + 4 * n}.items():
        why = misfit(4 * floats * copies, devices)
        if why:
            raw[name] = {"skipped": why}
        else:
            contenders[name] = turns.by_hand(along_axis(name, floats, devices))
    found = turns.in_turn(contenders, seconds, number, key)
    both = len(found) == len(MERGES)
    above = round(turns.ratio(found["psum"], found["gathered"]), 3) if both else None
    return {f"{key}/psum_over_gathered": above}, {**raw, **turns.microseconds(found)}


def along_axis(name: str, floats: int, devices: Sequence[Any]) -> Callable[[int], Any]:
    """A function that merges once; devices may belong to several processes."""
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    own, everywhere = PartitionSpec(AXIS), PartitionSpec()
    sharded = partial(jax.shard_map, mesh=mesh, check_vma=False)
    merge = hj.merge.over_axis(MERGES[name], AXIS)

    def begin() -> tuple[Any, tuple[hj.Replica, ...]]:
        here = jax.lax.axis_index(AXIS).astype(jnp.float32)
        replica = hj.Replica(_leaves(floats, here))
        return merge.init(replica.params), (replica,)

    specs = (everywhere, own)
    stats = hj.merge.stats([8] * len(devices))
    state, replicas = jax.jit(sharded(begin, in_specs=(), out_specs=specs))()
    average = jax.jit(
        sharded(
            lambda state, replicas: _apply(merge, state, replicas, stats),
            in_specs=specs,
            out_specs=specs,
        ),
        donate_argnums=(0, 1),
    )

    def merged(number: int) -> Any:
        nonlocal state, replicas
        state, replicas = average(state, replicas)
        return state, replicas

    return merged


def millions(floats: int) -> str:
    """As in 4M."""
    return f"{floats / 1e6:g}M"


def _apply(merge: Merge, state: Any, replicas: Any, stats: Any) -> Any:
    return merge.apply(state, replicas, stats)


def _leaves(floats: int, value: Any) -> list[jax.Array]:
    return [jnp.full(floats // LEAVES, value) for _ in range(LEAVES)]
