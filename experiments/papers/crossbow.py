"""CROSSBOW's claims: SMA, its rivals and its parts, tau, learners per GPU, the tuner.

    HETJAX_DATA=DIR python experiments/papers/crossbow.py           (30 minutes)
    python experiments/papers/crossbow.py --only=tuner              (seconds, no data)
    python experiments/papers/crossbow.py --quick                   (two minutes)

An MLP with 128 hidden units on Fashion-MNIST (--quick: digits), batches of 64, momentum
0.9 and weight decay 1e-4 for all, on one simulated GPU with 4 learners, or 8 GPUs with
2 learners each (CROSSBOW's learners are our workers). Time to accuracy is measured as
in CROSSBOW: until the median test accuracy of the last five epochs reaches the target,
which is 99 % of the highest accuracy that synchronous SGD reaches in every seed.
`learners_per_gpu.py` has the throughput of a GPU with several learners.
"""

import math
from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from absl import flags

import hetjax as hj
from experiments.common import bounds, claims, named_data, scripts
from experiments.common.bounds import bounded
from experiments.common.claims import Claim
from experiments.papers import learners_per_gpu

FLAGS = flags.FLAGS
flags.DEFINE_string("data", "fashion_mnist", f"{named_data.HELP} (--quick: digits)")
flags.DEFINE_string("model", "mlp", "mlp, lenet, ...")
flags.DEFINE_float("target", 0.0, "target accuracy; 0: 99 % of synchronous SGD's")
flags.DEFINE_float("learning_rate", 0.05, "learning rate")
flags.DEFINE_float("epochs", 10.0, "epochs that one learner per GPU has time for")
bounded("learning_rate", *bounds.LEARNING_RATE)
bounded("target", 0, 1, "it is an accuracy")
bounded("epochs", 5, 10_000, "times are medians of five epochs, and all are trained")

# Hogwild! without momentum, at multiples of the learning rate
PLAIN_HOGWILD = {"hogwild, plain": 1, "hogwild, plain x 2": 2, "hogwild, plain x 4": 4}
LEARNERS = {1: 4, 8: 2}  # per GPU, as in Figure 15
BATCH = 64


@cache
def problem() -> tuple[hj.Task, hj.data.Dataset]:
    data = named_data.load("digits" if FLAGS.quick else FLAGS.data)
    return hj.classification(named_data.model(FLAGS.model, data, 128), data), data


def batch_size() -> int:
    return 16 if FLAGS.quick else BATCH


def strategies() -> dict[str, hj.Strategy]:
    """The systems of Figure 15 and ablations of SMA, all with the same settings.

    Momentum and weight decay are applied by each learner (SMA, EA-SGD), or else to the
    shared model. Hogwild! also runs without momentum, at several learning rates.
    """
    common: dict[str, Any] = {
        "batch_size": batch_size(),
        "learning_rate": FLAGS.learning_rate,
    }
    common |= {"weight_decay": 1e-4}
    sma = {**common, "momentum": 0.9}
    drop = {**sma, "learning_rate": hj.LearningRate(_falling, "epochs")}
    return {
        "sma": hj.sma(**sma),
        "sma, no momentum": hj.sma(**sma, merge_momentum=0.0),
        "drop, restart": hj.sma(**drop),
        "drop, momentum kept": hj.sma(**drop, reset_momentum=False),
        "drop, no restart": hj.sma(**drop, restart="never"),
        "ea-sgd": hj.easgd_sync(**common, beta=1.0, momentum=0.9),
        "sync_sgd": hj.sync_sgd(**common, server_momentum=0.9),
        "hogwild": hj.hogwild(**common, server_momentum=0.9),
        **{
            name: hj.hogwild(**{**common, "learning_rate": times * FLAGS.learning_rate})
            for name, times in PLAIN_HOGWILD.items()
        },
        **{f"tau={tau}": hj.sma(**sma, local_steps=tau) for tau in (2, 3, 4)},
    }


def _falling(epochs: float) -> float:
    return FLAGS.learning_rate * (1.0 if epochs < 0.6 * FLAGS.epochs else 0.1)


@cache
def trained(name: str, gpus: int, learners: int) -> tuple[hj.History, ...]:
    """One run per seed, all for the same number of virtual seconds."""
    task, data = problem()
    machine = learners_per_gpu.servers(gpus, learners)
    # one learner per GPU has time for --epochs
    step = machine.worker_infos(0.0)[0].seconds(batch_size())
    seconds = FLAGS.epochs * len(data.train) / batch_size() * step / gpus
    runs = claims.compare(
        task,
        data,
        machine,
        {name: strategies()[name]},
        seconds=seconds,
        seeds=tuple(claims.seeds()),
        num_evals=math.ceil(8 * FLAGS.epochs),
    )
    return tuple(runs.histories)


@cache
def target(gpus: int) -> float:
    """The test accuracy to reach."""
    if FLAGS.target:
        return FLAGS.target
    histories = trained("sync_sgd", gpus, LEARNERS[gpus])
    highest = min(max(m for _, m in medians(h)) for h in histories)
    return round(0.99 * highest, 4)


def medians(history: hj.History) -> list[tuple[dict[str, float], float]]:
    """The end of every epoch, and the median accuracy of the last five epochs.

    The end of an epoch is the first evaluation after its last example.
    """
    n = len(problem()[1].train)
    ends: list[dict[str, float]] = []
    for point in history.evals:
        while point["examples"] >= (len(ends) + 1) * n:
            ends.append(point)
    last = [
        [p[history.metric] for p in ends[i - 5 : i]] for i in range(5, len(ends) + 1)
    ]
    return list(zip(ends[4:], map(median, last), strict=True))


def epochs_to(history: hj.History, goal: float) -> tuple[float, float]:
    """(epochs, seconds) until the median of the last five epochs reaches the goal.

    This is the paper's own rule, and not that of `History.seconds_to`: a median of five
    epochs is no single good evaluation, but may fall again.
    """
    for epoch, (point, accuracy) in enumerate(medians(history), start=5):
        if accuracy >= goal:
            return float(epoch), point["seconds"]
    return math.inf, math.inf


class Found(NamedTuple):
    """A strategy's results, one entry per seed."""

    epochs: list[float]  # to the target
    seconds: list[float]
    throughput: list[float]  # [images/s]
    best: list[float]


@cache
def found(name: str, gpus: int, learners: int) -> Found:
    histories = trained(name, gpus, learners)
    goal = target(gpus)
    epochs, seconds = zip(*(epochs_to(h, goal) for h in histories), strict=True)
    throughput = [h.evals[-1]["examples"] / h.duration for h in histories]
    best = [h.best() for h in histories]
    return Found(list(epochs), list(seconds), throughput, best)


def setting(gpus: int, learners: int) -> str:
    name, n = problem()[1].name, len(claims.seeds())
    return f"{name}, {gpus} GPUs, {learners} learners each, {n} seeds"


def gain_claim(
    id_: str,
    claim: str,
    paper: float | str,
    larger: list[float],
    smaller: list[float],
    detail: str,
    where: str,
) -> Claim:
    """The claim that `larger` exceeds `smaller` by as much as in the paper."""
    ours = median(larger) / median(smaller)  # NaN if both are infinite
    verdict = claims.by_gain(larger, smaller, paper)
    number = round(ours, 2) if math.isfinite(ours) else "never"
    return Claim(id_, claim, paper, number, "x", verdict, f"{where}; {detail}")


def rivals_section() -> Iterator[Claim]:
    """Figure 15: SMA's lead in time to the target."""
    papers = {
        "hogwild": {1: 1.8, 8: 1.5},
        "ea-sgd": {1: 1.1, 8: 1.4},
        "sync_sgd": {1: "sooner", 8: "sooner"},
        "sma, no momentum": {1: "sooner", 8: "sooner"},
    }
    for name, paper in papers.items():
        for gpus, learners in LEARNERS.items():
            sma, other = (found(n, gpus, learners) for n in ("sma", name))
            tried = ""
            if name == "hogwild":  # compare with its best variant
                plain = [found(n, gpus, learners) for n in PLAIN_HOGWILD]
                variants = [other, *plain]
                other = min(
                    variants, key=lambda f: (median(f.seconds), -median(f.best))
                )
                tried = "; ".join(claims.spread(variant.best) for variant in variants)
            yield gain_claim(
                f"rivals/{name.replace(', ', '_').replace(' ', '_')}/{gpus}",
                f"SMA reaches the target sooner than {name}",
                paper[gpus],
                other.seconds,
                sma.seconds,
                f"seconds to {target(gpus)}: {median(sma.seconds):.3g} and "
                f"{median(other.seconds):.3g}; best accuracy "
                f"{claims.spread(sma.best)} and {claims.spread(other.best)}"
                + (f" (with momentum, and plain at 1, 2, 4 x: {tried})" * bool(tried)),
                setting(gpus, learners),
            )


def restart_section() -> Iterator[Claim]:
    """Figure 15 and Section 3.2: a restart where the learning rate drops."""
    for gpus, learners in LEARNERS.items():
        best = {
            name: found(f"drop, {name}", gpus, learners).best
            for name in ("restart", "momentum kept", "no restart")
        }
        sign = claims.ahead(best["restart"], best["no restart"])
        yield Claim(
            f"restart/{gpus}",
            "a restart where the learning rate drops improves accuracy",
            "improves",
            "; ".join(f"{name} {claims.spread(v)}" for name, v in best.items()),
            "accuracy",
            claims.by_sign(sign, "no restart is better in every seed"),
            f"{setting(gpus, learners)}; learning rate / 10 after "
            f"{0.6 * FLAGS.epochs:g} epochs",
        )


def tau_section() -> Iterator[Claim]:
    """Figure 17: rare synchronization is faster per step, but slower to the target."""
    gpus, learners = 8, 2
    first = found("sma", gpus, learners)
    for tau in (2, 3, 4):
        other = found(f"tau={tau}", gpus, learners)
        yield gain_claim(
            f"tau/{tau}/throughput",
            f"images per second with tau = {tau}, over tau = 1",
            1.31 if tau == 4 else "more",
            other.throughput,
            first.throughput,
            "merges overlap with the next steps, and those of an MLP are short",
            setting(gpus, learners),
        )
        yield gain_claim(
            f"tau/{tau}/time",
            f"time to the target with tau = {tau}, over tau = 1",
            1.53 if tau == 4 else "longer",
            other.seconds,
            first.seconds,
            f"seconds {median(first.seconds):.3g} and {median(other.seconds):.3g}; "
            f"best {claims.spread(first.best)} and {claims.spread(other.best)}",
            setting(gpus, learners),
        )


def learners_section() -> Iterator[Claim]:
    """Figures 12 and 13: more learners per GPU."""
    papers = {1: (4, 1.4, 3.2, 30 / 14), 8: (2, 1.3, 1.3, "no change")}
    for gpus, (best_m, paper_rate, paper_time, paper_epochs) in papers.items():
        swept = {m: found("sma", gpus, m) for m in (1, 2, 3, 4, 5)[: best_m + 1]}
        sweep = "; ".join(
            f"m={m}: {median(f.epochs):.3g} epochs, {median(f.seconds):.3g} s, "
            f"{median(f.throughput):,.0f}/s"
            for m, f in swept.items()
        )
        first, chosen = swept[1], swept[best_m]
        where = setting(gpus, best_m)
        for what, paper, larger, smaller in (
            ("throughput", paper_rate, chosen.throughput, first.throughput),
            ("time", paper_time, first.seconds, chosen.seconds),
            ("epochs", paper_epochs, first.epochs, chosen.epochs),
        ):
            name = f"learners/{gpus}/{what}"
            text = f"{what} with {best_m} learners per GPU, gain over one"
            claim = gain_claim(name, text, paper, larger, smaller, sweep, where)
            if what == "throughput":  # the machine's curve is the paper's
                claim = claim._replace(verdict=claims.by_construction(claim.verdict))
            if paper == "no change":
                gain = median(larger) / median(smaller)
                claim = claim._replace(verdict=claims.within(gain, 1.0, 0.1))
            yield claim


if __name__ == "__main__":
    scripts.run(
        lambda: claims.main(
            {
                "tuner": learners_per_gpu.tuner_section,
                "tuner_paper": learners_per_gpu.tuner_paper_section,
                "rivals": rivals_section,
                "restart": restart_section,
                "tau": tau_section,
                "learners": learners_section,
            },
            by_clock=("tuner", "tuner_paper"),
            before_training=problem,
        )
    )
