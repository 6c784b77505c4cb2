"""HierSGD's times on the clock alone: communication, speed-up, asynchronous rivals.

Times come from the virtual clock alone, on `minsky32x4` with the models' sizes and
steps. How they were set: a step on 128 CIFAR-10 images takes STEPS seconds, from the
models' multiplications (three times the forward pass, 2 flops each) at 40 % of a P100's
10.6 Tflop/s, and 2 ms of launches. Links are queues: NVLink within a node; between
nodes a reduction by a tree of messages (2 ceil(log2 n) of the model's size) at
`--bandwidth`: of messages that go to the host, over the network (12 GB/s), are added
there, and go back, one after the other at about 12 GB/s each. That is an assumption, no
measurement; `--topology=ring --bandwidth=12e9` is what the network alone could do.
Steps differ by 2 %, and a synchronisation waits for the slowest.
"""

from collections.abc import Iterator
from dataclasses import replace

import claims
from absl import flags
from claims import Claim

import hetjax as hj
from hetjax.machine import (
    Arrival,
    Cost,
    Link,
    Machine,
    Merged,
    SimulatedClock,
    preset,
)

FLAGS = flags.FLAGS
flags.DEFINE_float("bandwidth", 3e9, "of a message between nodes [bytes/s]")
flags.DEFINE_float("latency", 20e-6, "of a message between nodes [s]")
flags.DEFINE_enum("topology", "tree", ["tree", "ring"], "of a reduction between nodes")

LEARNERS = (8, 16, 32, 64, 128)
BYTES = {"vgg": 14_987_210 * 4, "nin": 968_404 * 4, "convnet": 506_378 * 4}
# [s]: 3 * 2 * 128 * (313, 223, 19) million multiplications at 4.24 Tflop/s, and 2 ms
STEPS = {
    name: 2e-3 + 6 * 128 * flops / 4.24e12
    for name, flops in {"vgg": 313e6, "nin": 223e6, "convnet": 19e6}.items()
}
INTERVALS = {"vgg": 16, "nin": 4, "convnet": 4}  # T of HierSGD_2
TWO = {"vgg": (4, 16), "nin": (2, 4), "convnet": (4, 16)}  # (T_1, T_2) of HierSGD_3
SPEEDUP = {8: (4.9, 4.8, 5.9), 128: (56.3, 58.3, 65.1)}  # vgg, nin, convnet
SPEEDUP_3 = {"vgg": 46.87, "nin": 55.55, "convnet": 21.05}
LIMITS = {8: 20.0, 16: 20.0, 128: 45.0}  # [%] of an epoch, at most


def cluster(learners: int, model: str | None = None) -> Machine:
    """Nodes of four learners with the steps of a model; 2 % noise."""
    whole = preset("minsky32x4")
    nodes = [f"node{i:02d}" for i in range(learners // 4)]
    seconds = STEPS[model] if model else STEPS["vgg"]
    workers = tuple(
        replace(worker, cost=Cost(seconds, 0.0), factor=1.0)
        for worker in whole.workers[:learners]
    )
    between = Link(FLAGS.latency, FLAGS.bandwidth, FLAGS.topology)
    links = {"": between} | {node: whole.links[node] for node in nodes}
    return Machine(f"minsky{learners // 4}x4", workers, links, noise=0.02)


def played(model: str, learners: int, levels: int) -> tuple[float, float]:
    """(seconds of an epoch of 50,000 images in batches of 128, % not computing)."""
    intervals = (INTERVALS[model],) if levels == 2 else TWO[model]
    strategy = hj.hier_sgd(
        batch_size=128,
        rate=0.1,
        levels=() if levels == 2 else (4,),
        intervals=intervals,
    )
    machine = cluster(learners, model)
    clock = SimulatedClock(machine, seed=0)
    rounds, every = 0, max(intervals)
    events = hj.schedule.play(
        strategy.policy, clock, num_examples=50_000, num_bytes=BYTES[model]
    )
    for event, _ in events:
        if isinstance(event, Merged) and event.node == "root":
            rounds += 1
            if rounds == 12:
                break
    steps = rounds * every  # of each learner
    per_step = clock.now / steps
    return 50_000 / 128 / learners * per_step, 100 * (1 - STEPS[model] / per_step)


def communication_section(levels: int) -> Iterator[Claim]:
    """Figure 1, and the same with three levels."""
    for model in STEPS:
        for learners in LEARNERS:
            share = played(model, learners, levels)[1]
            limit = min(LIMITS.get(learners, 45.0), 30.0 if model == "nin" else 45.0)
            fits = share < limit
            tag = "communication" if levels == 2 else "communication3"
            yield Claim(
                f"{tag}/{model}/{learners}",
                f"share of an epoch that HierSGD_{levels} does not compute in",
                f"below {limit:g}" if levels == 2 else "no figure in the text",
                round(share, 1),
                "%",
                "ours" if levels == 3 else "reproduced" if fits else "not: above it",
                _link(model, levels),
            )


def _link(model: str, levels: int) -> str:
    times = INTERVALS[model] if levels == 2 else TWO[model]
    return (
        f"minsky, {FLAGS.topology} at {FLAGS.bandwidth:.3g} B/s, step "
        f"{1e3 * STEPS[model]:.3g} ms, {BYTES[model] / 1e6:.3g} MB, T={times}"
    )


def speedup_section(levels: int) -> Iterator[Claim]:
    """Figure 3, or Table I: an epoch's time, over that of one learner."""
    if levels == 3:
        for model, paper in SPEEDUP_3.items():
            yield _speedup(f"speedup3/{model}/128", model, 128, 3, paper)
        return
    for learners, papers in SPEEDUP.items():
        for model, paper in zip(STEPS, papers, strict=True):
            yield _speedup(f"speedup/{model}/{learners}", model, learners, 2, paper)


def _speedup(id_: str, model: str, learners: int, levels: int, paper: float) -> Claim:
    alone = 50_000 / 128 * STEPS[model]
    ours = alone / played(model, learners, levels)[0]
    off = ours / paper - 1
    word = "partly" if abs(off) <= 0.5 else "not"
    verdict = "reproduced" if abs(off) <= 0.25 else f"{word}: {100 * off:+.0f} %"
    return Claim(
        id_,
        f"an epoch of HierSGD_{levels} with {learners} learners is so much shorter",
        paper,
        round(ours, 1),
        "x",
        verdict,
        _link(model, levels),
    )


def rivals_time_section() -> Iterator[Claim]:
    """The same times with the models' own sizes: the clock alone."""
    for model in STEPS:
        for learners in (8, 64, 128):
            hier = played(model, learners, 2)[0]
            every = INTERVALS[model]
            rivals = {
                "downpour": hj.downpour(
                    batch_size=128, rate=0.1, n_push=every, n_fetch=every
                ),
                "eamsgd": hj.eamsgd(batch_size=128, rate=0.1, tau=every),
            }
            for name, strategy in rivals.items():
                seconds = _asynchronous(strategy, model, learners)
                ratio = seconds / hier
                most = {8: 1, 64: 10, 128: 16}[learners]
                yield Claim(
                    f"server/{name}/{model}/{learners}",
                    f"an epoch of {name} takes longer than one of HierSGD_2",
                    "similar" if most == 1 else f"up to {most} x",
                    round(ratio, 2),
                    "x",
                    server_verdict(ratio, most),
                    _link(model, 2) + "; the server is a queue on that link",
                )


def server_verdict(ratio: float, most: float) -> str:
    """Is it half to one and a half of what the paper has at most?

    1 means similar: from a half to twice.
    """
    if most == 1:
        return claims.by_fit(0.5 < ratio < 2)
    if ratio > 1.5 * most:
        return "partly: more than the paper's"
    if ratio >= 0.5 * most:
        return "reproduced"
    return "partly: in the direction" if ratio > 1.5 else "not"


def _asynchronous(strategy: hj.Strategy, model: str, learners: int) -> float:
    """Seconds of an epoch, from the first 60 * learners steps or so."""
    clock = SimulatedClock(cluster(learners, model), seed=0)
    examples, wanted = 0, 60 * learners * 128
    events = hj.schedule.play(
        strategy.policy, clock, num_examples=50_000, num_bytes=BYTES[model]
    )
    for event, _ in events:
        if isinstance(event, Arrival):
            examples += event.work.examples
            if examples >= wanted:
                break
    return clock.now * 50_000 / examples
