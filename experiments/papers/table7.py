"""The wall-clock column of Biased Local SGD's Table 7, on the virtual clock.

Nothing is trained. Rounds of steps run on one GPU and one CPU until the GPU has done
its half of the given number of passes over the data. The two step times of CIFAR-100
are the paper's, with tau_s = 1, and nothing is fitted. For CIFAR-10 and Flowers102 the
paper gives no step times: two step times and one synchronization cost per data set are
fitted to the three rows with the fewest epochs. These rows are met by construction; the
others are predictions.
"""

from typing import NamedTuple

import hetjax as hj
from hetjax.machine import Arrival, Cost, Link, Machine, Profile, SimulatedClock

TAU = 32  # local steps of balanced local SGD, and of the GPU in biased local SGD
RTX4090, EPYC7543 = 0.1940, 6.5230  # [s] of a WRN-28 batch on CIFAR-100, as published
WRN28_BYTES = 36_536_884 * 4  # with 100 classes
PCIE = Link(latency=20e-6, bandwidth=10e9)  # as in the presets


class Column(NamedTuple):
    """A column of the table: a data set's size, and the paper's times [s]."""

    examples: int
    batch: int
    sync: float
    balanced: float
    biased: float
    epochs: tuple[int, int, int]  # of the biased runs; sync, balanced: the first
    more: tuple[float, float]  # [s] of the second and third biased run


COLUMNS = {
    "cifar10": Column(
        50_000, 64, 8025.6, 3933.6, 1437.6, (100, 200, 300), (2875.2, 4312.8)
    ),
    "cifar100": Column(
        50_000, 128, 261_961.1, 254_498.3, 7666.9, (200, 400, 600), (15_333.8, 23_000.7)
    ),
    "flowers": Column(
        6149, 32, 141_023.2, 138_686.9, 5766.0, (150, 300, 450), (11_532.1, 17_298.1)
    ),
}


class Timing(NamedTuple):
    """The seconds of a batch on each device, and the link between the devices."""

    fast: float
    slow: float
    link: Link
    tau_slow: int
    fitted: bool


def timing(name: str) -> Timing:
    """The paper's step times, or times fitted to the rows with the fewest epochs.

    Seconds per iteration, where c is the cost of a synchronization:

        sync: t_s + c;   balanced: (32 t_s + c) / 32;   biased: (32 t_f + c) / 32

    and tau_s = 32 t_f / t_s.
    """
    if name == "cifar100":
        return Timing(RTX4090, EPYC7543, PCIE, 1, fitted=False)
    column = COLUMNS[name]
    iterations = column.epochs[0] * column.examples / (2 * column.batch)
    sync, balanced, biased = (
        seconds / iterations
        for seconds in (column.sync, column.balanced, column.biased)
    )
    slow = (TAU * balanced - sync) / (TAU - 1)
    cost = sync - slow
    fast = biased - cost / TAU
    tau_slow = max(1, int(TAU * fast / slow))  # so that the GPU does not wait
    link = Link(latency=cost / 2, bandwidth=1e30)  # a ring of two takes 2 L
    return Timing(fast, slow, link, tau_slow, fitted=True)


def seconds(name: str, method: str, epochs: int) -> float:
    """Virtual seconds of the epochs; the GPU does N / 2 examples in each."""
    column, t = COLUMNS[name], timing(name)
    machine = Machine(
        "gpu+cpu",
        (
            Profile("gpu", "gpu", Cost(t.fast, 0.0)),
            Profile("cpu", "cpu", Cost(t.slow, 0.0)),
        ),
        {"": t.link},
    )
    local_steps = {"sync": 1, "balanced": TAU, "biased": (TAU, t.tau_slow)}[method]
    policy = hj.schedule.rounds(local_steps=local_steps, batch_size=column.batch)
    clock = SimulatedClock(machine, seed=0)
    num_bytes = WRN28_BYTES if name == "cifar100" else 0
    wanted, done = epochs * column.examples / 2, 0
    before = (0.0, 0)  # time of the last merge, and the GPU's examples until then
    events = hj.decisions(
        policy, clock, num_examples=column.examples, num_bytes=num_bytes
    )
    for event, _ in events:
        if isinstance(event, Arrival) and event.worker == 0:
            done += event.local_round.examples
        elif isinstance(event, hj.machine.Merged):
            if done >= wanted:  # interpolate: the GPU was done within this round
                share = (wanted - before[1]) / (done - before[1])
                return before[0] + share * (event.time - before[0])
            before = (event.time, done)
    raise AssertionError("rounds never end")


def rows(name: str) -> list[tuple[str, int, float, bool]]:
    """The five rows: (method, epochs, the paper's seconds, met by construction?)."""
    column = COLUMNS[name]
    first, *others = column.epochs
    times = {"sync": column.sync, "balanced": column.balanced, "biased": column.biased}
    fitted = name != "cifar100"
    found = [(method, first, time, fitted) for method, time in times.items()]
    more = zip(others, column.more, strict=True)
    return found + [("biased", epochs, time, False) for epochs, time in more]
