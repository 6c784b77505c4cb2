"""Machines by name, so that experiments need no machine file.

Only the ratios between workers come from measurements in papers. The costs of a step on
a V100 and the links are assumptions of the right order of magnitude. For a custom
machine, build a `Machine` or edit a file that `Machine.save` wrote.
"""

import dataclasses
import math
import random
from pathlib import Path
from statistics import NormalDist

from hetjax.arguments import Positive, checked
from hetjax.machine import paper_machines
from hetjax.machine.availability import with_presence
from hetjax.machine.paper_machines import (
    EPYC7543_SECONDS,
    NVLINK,
    PCIE,
    RTX4090_SECONDS,
    WRN_BATCH,
)
from hetjax.machine.simulated_machine import MAX_WORKERS, Machine, check_num_workers
from hetjax.machine.workers_and_links import Cost, Link, Profile

# Four V100 cards of one server are not equally fast: the slowest takes 32 % longer than
# the fastest (Adaptive SGD). Of the time of a batch of 256 examples 3/7 are the fixed
# cost of a step: fixed = 0.75 * 256 * per_example.
V100_FACTORS = (1.0, 1.107, 1.213, 1.32)
V100_COST = Cost(fixed=0.75 * 256 * 1e-5, per_example=1e-5, per_nonzero=2e-8)

# Adaptive SGD's own setting: 103.2M parameters, batches of up to 1024. A step takes
# 3 ms and 80 us per example, estimated from the authors' plots of their V100s; a merge
# on a ring of 10 GB/s takes 62 ms, the slowest card's step 112 ms.
AMAZON_BYTES = 4.0 * 128 * (135_909 + 670_091)
AMAZON_BATCH = 1024
AMAZON_COST = Cost(fixed=3e-3, per_example=80e-6)
RING = Link(latency=20e-6, bandwidth=10e9, topology="ring")
# SLIDE on 44 cores took 1 h where TensorFlow on a V100 took 3.5 h to the same accuracy
# (SLIDE); the V100 above needs 92 us per example in batches of 256. An assumption.
SLIDE_COST = Cost(fixed=0.0, per_example=92e-6 / 3.5)

# Peak float32 speed of a V100 over a P100, both SXM2: 15.7 / 10.6 TFLOP/s.
P100_FACTOR = 1.48
# The same ratio for one of the two GPUs on a K80 card: 15.7 / (8.74 / 2) TFLOP/s. The
# whole step, with its fixed cost, is assumed to be slower by this factor.
K80_FACTOR = 3.59

INFINIBAND = Link(latency=3e-6, bandwidth=12e9)  # assumed: EDR, 100 Gbit/s

GIGABIT = Link(latency=100e-6, bandwidth=125e6)  # assumed: 1 Gbit/s Ethernet

# lognormal32: V100s whose steps are exp(0.5 z) times as long, with a normal z of each.
# The spread is assumed. The slowest is 8.5 times as slow as the fastest.
LOGNORMAL_WORKERS, LOGNORMAL_SIGMA, LOGNORMAL_SEED = 32, 0.5, 11

# four-speeds: seconds of a step of four workers, in the code that the authors of
# asynchronous DiLoCo published (Liu et al. 2024). Its example has batches of 32; that
# the seconds are of this batch size, and in proportion to it, is assumed.
FOUR_SPEEDS, FOUR_SPEEDS_BATCH = (0.58, 0.75, 1.51, 3.33), 32

# v100x4-churn: the absences [s] of three workers in each cycle of 2 s, for a minute; an
# assumption. An absence is as long as 50 to 170 steps on 256 examples.
CHURN_CYCLE, CHURN_CYCLES = 2.0, 30
CHURN = {
    "gpu1": ((0.5, 1.0),),
    "gpu2": ((0.25, 0.5), (1.25, 1.5)),
    "gpu3": ((0.75, 1.75),),
}

DEFAULT_NOISE = 0.02


def _v100s(
    factors: tuple[float, ...], cost: Cost = V100_COST, link: Link = PCIE
) -> Machine:
    workers = tuple(
        Profile(f"gpu{index}", "v100", cost, factor=factor)
        for index, factor in enumerate(factors)
    )
    return Machine("", workers, {"": link})


def _amazon(factors: tuple[float, ...]) -> Machine:
    return _v100s(factors, AMAZON_COST, RING)


def _slide() -> Machine:
    return Machine("", (Profile("cpu", "cpu", SLIDE_COST),), {"": RING})


def _gpu_and_cpu() -> Machine:
    seconds = RTX4090_SECONDS, EPYC7543_SECONDS
    return paper_machines.gpus_and_cpus(1, 1, WRN_BATCH, seconds)


def _with_old_card() -> Machine:
    """Return three equal V100s of 2017, and one of the two GPUs of a K80 of 2014."""
    old = Profile("gpu3", "k80", V100_COST, factor=K80_FACTOR)
    return Machine("", (*_v100s((1.0,) * 3).workers, old), {"": PCIE})


def _lognormal() -> Machine:
    """Return V100s of very different speeds, in a random order that is always the same.

    The factors come from uniform numbers by the inverse of the normal distribution, so
    that they do not depend on the version of NumPy.
    """
    uniform, normal = random.Random(LOGNORMAL_SEED), NormalDist()
    factors = tuple(
        math.exp(LOGNORMAL_SIGMA * normal.inv_cdf(uniform.random()))
        for _ in range(LOGNORMAL_WORKERS)
    )
    return _v100s(factors, link=GIGABIT)


def _four_speeds() -> Machine:
    fastest = Cost(0.0, FOUR_SPEEDS[0] / FOUR_SPEEDS_BATCH)
    workers = tuple(
        Profile(f"worker{k}", "gpu", fastest, factor=seconds / FOUR_SPEEDS[0])
        for k, seconds in enumerate(FOUR_SPEEDS)
    )
    return Machine("", workers, {"": GIGABIT})


def _churn() -> Machine:
    """Return the V100s of v100x4, three of which leave and join for a minute."""
    presence = {}
    for name, absences in CHURN.items():
        begins = (k * CHURN_CYCLE for k in range(CHURN_CYCLES))
        times = [(b + off, b + on) for b in begins for off, on in absences]
        offs, ons = zip(*times, strict=True)
        presence[name] = list(zip((0.0, *ons), (*offs, None), strict=True))
    return with_presence(_v100s(_FOUR), presence)


def _minsky(num_nodes: int, gpus_per_node: int) -> Machine:
    """Return IBM Minsky servers: P100s, NVLink within and InfiniBand between nodes."""
    nodes = [f"node{index:02d}" for index in range(num_nodes)]
    workers = tuple(
        Profile(
            f"{node}/gpu{gpu}", "p100", V100_COST, factor=P100_FACTOR, place=(node,)
        )
        for node in nodes
        for gpu in range(gpus_per_node)
    )
    return Machine("", workers, {"": INFINIBAND} | dict.fromkeys(nodes, NVLINK))


def _uniform(name: str) -> Machine:
    number = name.removeprefix("uniform:")
    if not (number.isascii() and number.isdigit() and number.strip("0")):
        raise ValueError(
            f"{name!r}: uniform:N needs a whole number N of at least 1, "
            "as in 'uniform:8'"
        )
    number = number.lstrip("0")
    if len(number) > 18:  # Python itself refuses to parse very long numbers
        raise ValueError(
            f"uniform:{number[:18]}...: this many workers are too many, use at most "
            f"{MAX_WORKERS:,}: each has a replica of the model"
        )
    check_num_workers(name, int(number))
    return _v100s((1.0,) * int(number))


_FOUR, _TWO = V100_FACTORS, (V100_FACTORS[0], V100_FACTORS[-1])
_AMAZON = {  # these can be scaled to other models: `like_amazon670k`
    "v100x4-amazon670k": lambda: _amazon(_FOUR),
    "v100x2-amazon670k": lambda: _amazon(_TWO),
    "v100x1-amazon670k": lambda: _amazon(_FOUR[:1]),
    "slide-amazon670k": _slide,
}
_BUILDERS = {
    "v100x4": lambda: _v100s(_FOUR),
    "v100x2": lambda: _v100s(_TWO),
    "v100x1": lambda: _v100s(_FOUR[:1]),
    **_AMAZON,
    "v100x4-churn": _churn,
    "v100x3+k80": _with_old_card,
    "lognormal32": _lognormal,
    "four-speeds": _four_speeds,
    "rtx4090+epyc7543": _gpu_and_cpu,
    "minsky32x4": lambda: _minsky(32, 4),
}

# "uniform:N" has N equal workers
PRESETS = (*_BUILDERS, *paper_machines.NAMES, "uniform:N")


@checked
def preset(name: str, *, seed: int = 0, noise: float = DEFAULT_NOISE) -> Machine:
    """Return the machine of that name, one of PRESETS.

    >>> [worker.factor for worker in preset("v100x4").workers]
    [1.0, 1.107, 1.213, 1.32]
    >>> len(preset("uniform:1000").workers)
    1000
    """
    if name.startswith("uniform:"):
        machine = _uniform(name)
    elif name in _BUILDERS:
        machine = _BUILDERS[name]()
    elif (of_paper := paper_machines.build(name)) is not None:
        machine = of_paper
    else:
        known = ", ".join(PRESETS)
        raise ValueError(
            f"unknown machine {name!r}; known: {known} "
            "(load_machine also reads a .json file)"
        )
    return dataclasses.replace(machine, name=name, seed=seed, noise=noise)


@checked
def like_amazon670k(
    name: str,
    *,
    batch_size: Positive,
    num_bytes: Positive,
    seed: int = 0,
    noise: float = DEFAULT_NOISE,
) -> Machine:
    """Scale a machine of Adaptive SGD's own setting to another model and batch size.

    `name` is one of the presets that end in "-amazon670k". On the scaled machine a step
    of `batch_size` examples (b_max) and a merge of `num_bytes` take as long as a step
    of 1024 examples and a merge of 412 MB take on the preset.

    >>> small = like_amazon670k("v100x4-amazon670k", batch_size=8, num_bytes=1e6)
    >>> round(small.workers[0].cost.seconds(8), 5)
    0.08492
    """
    if name not in _AMAZON:
        raise ValueError(f"{name!r} cannot be scaled; these can: {', '.join(_AMAZON)}")
    machine = preset(name, seed=seed, noise=noise)
    workers = tuple(
        dataclasses.replace(
            worker,
            cost=dataclasses.replace(
                worker.cost,
                per_example=worker.cost.per_example * AMAZON_BATCH / batch_size,
            ),
        )
        for worker in machine.workers
    )
    links = {
        place: dataclasses.replace(
            link, bandwidth=link.bandwidth * num_bytes / AMAZON_BYTES
        )
        for place, link in machine.links.items()
    }
    scaled = f"{name}, batch {batch_size}, {num_bytes / 1e6:.3g} MB"
    return dataclasses.replace(machine, name=scaled, workers=workers, links=links)


def load_machine(
    name_or_path: str | Path, *, seed: int | None = None, noise: float | None = None
) -> Machine:
    """Return a preset by its name, or the machine in a .json file.

    `seed` and `noise` default to the values in the file, or of the preset.
    """
    is_file = str(name_or_path).endswith(".json")
    if is_file and not Path(name_or_path).exists():
        raise FileNotFoundError(
            f"there is no file {str(name_or_path)!r}: pass a preset's name "
            f"({', '.join(PRESETS)}), or a file that `calibrate` wrote"
        )
    machine = Machine.load(name_or_path) if is_file else preset(str(name_or_path))
    changes = {"seed": seed, "noise": noise}
    changes = {name: value for name, value in changes.items() if value is not None}
    return dataclasses.replace(machine, **changes)
