"""HierSGD's times on the virtual clock: communication, speed-up, asynchronous rivals.

The virtual machine is `minsky32x4`, with the sizes and step times of the paper's
models. A step on 128 CIFAR-10 images takes STEPS seconds: the model's multiplications
(three times the forward pass, 2 flops each) at 40 % of a P100's 10.6 Tflop/s, and 2 ms
of launches. Links are queues. NVLink connects the GPUs of a node. Between nodes, a
reduction is a tree of messages (2 ceil(log2 n) times the model's size) at
`--bandwidth`: a message goes to the host, over the network (12 GB/s), is added there,
and goes back, each at about 12 GB/s, one after the other. That is an assumption, not a
measurement; `--topology=ring --bandwidth=12e9` is what the network alone could do.
Step times vary by 2 %, and a synchronisation waits for the slowest worker.
"""

from collections.abc import Iterator
from dataclasses import replace

from absl import flags

import hetjax as hj
from experiments.common import claims
from experiments.common.bounds import bounded
from experiments.common.claims import Claim
from hetjax.machine import Arrival, Cost, Link, Machine, Merged, SimulatedClock, preset

FLAGS = flags.FLAGS
flags.DEFINE_float("bandwidth", 3e9, "bandwidth of a message between nodes [bytes/s]")
flags.DEFINE_float("latency", 20e-6, "latency of a message between nodes [s]")
flags.DEFINE_enum("topology", "tree", ["tree", "ring"], "how nodes reduce")
bounded("bandwidth", 1, 1e30, "it is a number of bytes per second")
bounded("latency", 0, 10**6, "it is a number of seconds")

LEARNERS = (8, 16, 32, 64, 128)
BYTES = {"vgg": 14_987_210 * 4, "nin": 968_404 * 4, "convnet": 506_378 * 4}
STEPS = {  # [s]
    name: preset(f"minsky32x4-{model}").workers[0].cost.seconds(128)
    for name, model in {"vgg": "vgg16", "nin": "nin", "convnet": "convnet"}.items()
}
INTERVALS = {"vgg": 16, "nin": 4, "convnet": 4}  # T of HierSGD_2
TWO = {"vgg": (4, 16), "nin": (2, 4), "convnet": (4, 16)}  # (T_1, T_2) of HierSGD_3
SPEEDUP = {8: (4.9, 4.8, 5.9), 128: (56.3, 58.3, 65.1)}  # vgg, nin, convnet
SPEEDUP_3 = {"vgg": 46.87, "nin": 55.55, "convnet": 21.05}
LIMITS = {8: 20.0, 16: 20.0, 128: 45.0}  # [%] of an epoch spent communicating


def cluster(learners: int, model: str | None = None) -> Machine:
    """Nodes of four learners with a model's step time, and 2 % noise."""
    whole = preset("minsky32x4")
    nodes = [f"node{i:02d}" for i in range(learners // 4)]
    seconds = STEPS[model] if model else STEPS["vgg"]
    workers = tuple(
        replace(worker, cost=Cost(seconds, 0.0), factor=1.0)
        for worker in whole.workers[:learners]
    )
    between = Link(
        latency=FLAGS.latency, bandwidth=FLAGS.bandwidth, topology=FLAGS.topology
    )
    links = {"": between} | {node: whole.links[node] for node in nodes}
    return Machine(f"minsky{learners // 4}x4", workers, links, noise=0.02)


def epoch_time(model: str, learners: int, levels: int) -> tuple[float, float]:
    """(seconds, % not computing) of an epoch: 50,000 images in batches of 128."""
    local_steps = (INTERVALS[model],) if levels == 2 else TWO[model]
    strategy = hj.hier_sgd(
        batch_size=128,
        learning_rate=0.1,
        levels=() if levels == 2 else (4,),
        local_steps=local_steps,
    )
    machine = cluster(learners, model)
    clock = SimulatedClock(machine, seed=0)
    rounds, every = 0, max(local_steps)
    events = hj.decisions(
        strategy.policy, clock, num_examples=50_000, num_bytes=BYTES[model]
    )
    for event, _ in events:
        if isinstance(event, Merged) and event.node == "root":
            rounds += 1
            if rounds == 12:
                break
    per_step = clock.now / (rounds * every)  # every learner's steps
    return 50_000 / 128 / learners * per_step, 100 * (1 - STEPS[model] / per_step)


def communication_section(levels: int) -> Iterator[Claim]:
    """Figure 1: shares of communication, and the same with three levels."""
    for model in STEPS:
        for learners in LEARNERS:
            share = epoch_time(model, learners, levels)[1]
            limit = min(LIMITS.get(learners, 45.0), 30.0 if model == "nin" else 45.0)
            fits = share < limit
            tag = "communication" if levels == 2 else "communication3"
            yield Claim(
                f"{tag}/{model}/{learners}",
                f"share of an epoch that HierSGD_{levels} does not compute in",
                f"below {limit:g}" if levels == 2 else "no figure in the text",
                round(share, 1),
                "%",
                claims.OWN if levels == 3 else claims.by_fit(fits, "above the limit"),
                _link(model, levels),
            )


def _link(model: str, levels: int) -> str:
    times = INTERVALS[model] if levels == 2 else TWO[model]
    return (
        f"minsky, {FLAGS.topology} at {FLAGS.bandwidth:.3g} B/s, step "
        f"{1e3 * STEPS[model]:.3g} ms, {BYTES[model] / 1e6:.3g} MB, T={times}"
    )


def speedup_section(levels: int) -> Iterator[Claim]:
    """Figure 3 and Table I: an epoch's time with one learner over that with many."""
    if levels == 3:
        for model, paper in SPEEDUP_3.items():
            yield _speedup(f"speedup3/{model}/128", model, 128, 3, paper)
        return
    for learners, papers in SPEEDUP.items():
        for model, paper in zip(STEPS, papers, strict=True):
            yield _speedup(f"speedup/{model}/{learners}", model, learners, 2, paper)


def _speedup(id_: str, model: str, learners: int, levels: int, paper: float) -> Claim:
    alone = 50_000 / 128 * STEPS[model]
    ours = alone / epoch_time(model, learners, levels)[0]
    off = ours / paper - 1
    verdict = claims.REPRODUCED
    if abs(off) > 0.25:
        worded = claims.partly if abs(off) <= 0.5 else claims.refuted
        verdict = worded(f"it differs by {100 * off:+.0f} %")
    return Claim(
        id_,
        f"speed-up of an epoch of HierSGD_{levels} with {learners} learners",
        paper,
        round(ours, 1),
        "x",
        verdict,
        _link(model, levels),
    )


def rivals_time_section() -> Iterator[Claim]:
    """The time of an epoch of the asynchronous rivals over that of HierSGD_2."""
    for model in STEPS:
        for learners in (8, 64, 128):
            hier = epoch_time(model, learners, 2)[0]
            every = INTERVALS[model]
            rivals = {
                "downpour": hj.downpour(
                    batch_size=128,
                    learning_rate=0.1,
                    push_every=every,
                    fetch_every=every,
                ),
                "eamsgd": hj.eamsgd(
                    batch_size=128, learning_rate=0.1, local_steps=every
                ),
            }
            for name, strategy in rivals.items():
                seconds = _asynchronous(strategy, model, learners)
                ratio = seconds / hier
                most = {8: 1, 64: 10, 128: 16}[learners]
                yield Claim(
                    f"server/{name}/{model}/{learners}",
                    f"time of an epoch of {name} over one of HierSGD_2",
                    "similar" if most == 1 else f"up to {most} x",
                    round(ratio, 2),
                    "x",
                    server_verdict(ratio, most),
                    _link(model, 2) + "; the server is a queue on that link",
                )


def server_verdict(ratio: float, most: float) -> str:
    """The verdict: whether the ratio is 0.5 to 1.5 times the paper's largest.

    `most` = 1 means "similar": a ratio of 0.5 to 2.
    """
    if most == 1:
        return claims.by_fit(0.5 < ratio < 2, "the times are not similar")
    if ratio > 1.5 * most:
        return claims.partly("the ratio is larger than the paper's")
    if ratio >= 0.5 * most:
        return claims.REPRODUCED
    if ratio > 1.5:
        return claims.partly("the direction is right, the size is not")
    return claims.refuted("the rival is hardly slower")


def _asynchronous(strategy: hj.Strategy, model: str, learners: int) -> float:
    """Seconds of an epoch, estimated from each learner's first 60 or so steps."""
    clock = SimulatedClock(cluster(learners, model), seed=0)
    examples, wanted = 0, 60 * learners * 128
    events = hj.decisions(
        strategy.policy, clock, num_examples=50_000, num_bytes=BYTES[model]
    )
    for event, _ in events:
        if isinstance(event, Arrival):
            examples += event.local_round.examples
            if examples >= wanted:
                break
    return clock.now * 50_000 / examples
