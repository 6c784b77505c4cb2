"""CROSSBOW's claims: SMA, its rivals and its parts, tau, learners per GPU, the tuner.

    HETJAX_DATA=DIR python experiments/crossbow.py                  (30 minutes)
    python experiments/crossbow.py --only=tuner                     (seconds, no data)
    python experiments/crossbow.py --quick                          (two minutes)

Fashion-MNIST (--quick: digits), an MLP with 128 hidden units, batches of 64, local
momentum 0.9, decay 1e-4, on one simulated GPU with 4 learners, or 8 GPUs with 2 each.
Time to accuracy is CROSSBOW's: until the median test accuracy of the last five epochs
reaches the target. A GPU's throughput with several learners is CROSSBOW's Figure 14
where its text gives it; the points in between are ours (CURVES).
"""

import math
from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any

import claims
import datasets
import scripts
from absl import flags
from claims import Claim

import hetjax as hj
from hetjax.machine import Machine, SimulatedClock, preset

FLAGS = flags.FLAGS
flags.DEFINE_string("data", "fashion_mnist", "a named data set (--quick: digits)")
flags.DEFINE_string("model", "mlp", "mlp, lenet, ...")
flags.DEFINE_float("target", 0.866, "test accuracy with one GPU (--quick: 0.93)")
flags.DEFINE_float("target8", 0.845, "test accuracy with eight GPUs (--quick: 0.93)")
flags.DEFINE_float("rate", 0.05, "learning rate")
flags.DEFINE_float("epochs", 10.0, "of one learner on each GPU, in the same time")

# Throughput with 1, 2, ... learners, relative to one. Figure 14's text: ResNet-32 gains
# 1.4 x at 4 on one GPU and falls behind it, 1.3 x at 2 on eight and stays there; VGG
# stops growing at 3 on one GPU and at 2 on eight. All other points are ours.
CURVES = {
    ("resnet32", 1): (1.0, 1.12, 1.25, 1.4, 1.35, 1.3),
    ("resnet32", 8): (1.0, 1.3, 1.3, 1.3),
    ("vgg", 1): (1.0, 1.15, 1.3, 1.3, 1.3),
    ("vgg", 8): (1.0, 1.15, 1.15, 1.15),
}
BEST = {("resnet32", 1): 4, ("resnet32", 8): 2, ("vgg", 1): 3, ("vgg", 8): 2}
LEARNERS = {1: 4, 8: 2}  # per GPU, as in Figure 15
BATCH = 64


def servers(gpus: int, learners: int, model: str = "resnet32") -> Machine:
    """Equal GPUs with so many learners each; 2 % noise."""
    return preset(f"uniform:{gpus}").with_learners(learners, CURVES[model, gpus])


def tuner_section() -> Iterator[Claim]:
    """Which number of learners the public code's rule ends at."""
    return _choices("tuner", "stop_at_first_drop")


def tuner_paper_section() -> Iterator[Claim]:
    """And which one the paper's own: on a plateau it cannot step back."""
    return _choices("tuner_paper", "paper")


def _choices(section: str, rule: str) -> Iterator[Claim]:
    for (model, gpus), best in BEST.items():
        path = _tuned(model, gpus, rule)
        fits = path[-1] == best
        verdict = "reproduced" if fits else f"not: it goes {_path(path)}"
        yield Claim(
            f"{section}/{model}/{gpus}gpu{'s' if gpus > 1 else ''}",
            f"the tuner ({rule}) chooses the best number of learners per GPU",
            best,
            path[-1],
            "learners",
            verdict,
            f"uniform:{gpus} without noise, windows of 10 rounds, threshold 10 %, "
            f"curve {CURVES[model, gpus]}; learners over time: {_path(path)}",
        )


def _path(path: list[int]) -> str:
    return ", ".join(map(str, path[:12])) + (", ..." if len(path) > 12 else "")


def _tuned(model: str, gpus: int, rule: str) -> list[int]:
    """Learners per GPU after every change, over 400 rounds."""
    machine = servers(gpus, 6, model).without_noise()
    policy = hj.schedule.tuned_learners(
        hj.schedule.rounds(
            batch_size=BATCH, first=hj.schedule.one_per_device, blocking=False
        ),
        rule=rule,
    )
    path, rounds, total = [1], 0, gpus
    clock = SimulatedClock(machine, seed=0)
    # merges take no time of their own: the curve was measured with them
    for event, orders in hj.schedule.play(policy, clock, num_examples=50_000):
        if event is not None:
            total += len(orders.start) - len(orders.stop)
            rounds += bool(orders.merges)
        if total / gpus != path[-1]:
            path.append(total // gpus)
        if rounds == 400:
            break
    return path


@cache
def problem() -> tuple[hj.Task, hj.data.Dataset]:
    data = datasets.load("digits" if FLAGS.quick else FLAGS.data)
    return hj.classification(datasets.model(FLAGS.model, data, 128), data), data


def batch_size() -> int:
    return 16 if FLAGS.quick else BATCH


def strategies() -> dict[str, hj.Strategy]:
    """The systems of Figure 15, and SMA without its parts."""
    common: dict[str, Any] = {"batch_size": batch_size(), "rate": FLAGS.rate}
    local: dict[str, Any] = {"weight_decay": 1e-4}
    sma = {**common, **local, "local_momentum": 0.9}
    return {
        "sma": hj.sma(**sma),
        "sma, no momentum": hj.sma(**sma, momentum=0.0),
        "drop, restart": hj.sma(**{**sma, "rate": hj.Rate(_falling, "epochs")}),
        "drop, momentum kept": hj.sma(
            **{**sma, "rate": hj.Rate(_falling, "epochs")}, reset_momentum=False
        ),
        "drop, no restart": hj.sma(
            **{**sma, "rate": hj.Rate(_falling, "epochs")}, restart="never"
        ),
        "ea-sgd": hj.easgd_sync(**common, **local, beta=1.0, momentum=0.9),
        "sync_sgd": hj.sync_sgd(**common, momentum=0.9),
        "hogwild": hj.hogwild(**common),
        **{f"tau={tau}": hj.sma(**sma, tau=tau) for tau in (2, 3, 4)},
    }


def _falling(epochs: float) -> float:
    return FLAGS.rate * (1.0 if epochs < 0.6 * FLAGS.epochs else 0.1)


@cache
def trained(name: str, gpus: int, learners: int) -> tuple[hj.History, ...]:
    """One run per seed, all of them over the same virtual seconds."""
    task, data = problem()
    machine = servers(gpus, learners)
    # one learner on each GPU does so many epochs in that time
    step = machine.worker_infos(0.0)[0].seconds(batch_size())
    seconds = FLAGS.epochs * len(data.train) / batch_size() * step / gpus
    runs = hj.compare(
        task,
        data,
        machine,
        {name: strategies()[name]},
        seconds=seconds,
        seeds=tuple(claims.seeds()),
        points=math.ceil(8 * FLAGS.epochs),
    )
    return tuple(runs.histories)


def target(gpus: int) -> float:
    if FLAGS.quick:
        return 0.93
    return FLAGS.target if gpus == 1 else FLAGS.target8


def epochs_to(history: hj.History, goal: float) -> tuple[float, float]:
    """(epochs, seconds) until the median of the last five epochs' accuracies is there.

    An epoch's accuracy is that of the first evaluation behind its end.
    """
    n = len(problem()[1].train)
    ends: list[dict[str, float]] = []
    for point in history.points:
        while point["examples"] >= (len(ends) + 1) * n:
            ends.append(point)
            last = [p[history.metric] for p in ends[-5:]]
            if len(last) == 5 and median(last) >= goal:
                return float(len(ends)), point["seconds"]
    return math.inf, math.inf


def medians(name: str, gpus: int, learners: int) -> tuple[float, float, float, str]:
    """Epochs and seconds to the target, images per second, and best accuracies."""
    histories = trained(name, gpus, learners)
    goal = target(gpus)
    epochs, seconds = zip(*(epochs_to(h, goal) for h in histories), strict=True)
    rates = [h.points[-1]["examples"] / h.span for h in histories]
    best = claims.spread([h.best() for h in histories])
    return median(epochs), median(seconds), median(rates), best


def setting(gpus: int, learners: int) -> str:
    name, n = problem()[1].name, len(claims.seeds())
    return f"{name}, {gpus} GPUs, {learners} learners each, {n} seeds"


def ratio_claim(
    id_: str, claim: str, paper: float | str, ours: float, detail: str, where: str
) -> Claim:
    """Is the ratio on the paper's side of one, and its gain within a half of theirs?"""
    if FLAGS.quick:
        verdict = claims.SMOKE
    elif math.isnan(ours):
        verdict = "not: neither reaches the target"
    elif math.isinf(ours):
        verdict = "partly: the other never reaches the target"
    elif ours <= 1:
        verdict = "not: on the other side of one"
    elif isinstance(paper, str):
        verdict = "reproduced" if ours >= 1.05 else "not: less than 5 %"
    elif abs((ours - 1) / (paper - 1) - 1) <= 0.5:
        verdict = "reproduced"
    else:
        verdict = "partly: in the direction, not in size"
    number = round(ours, 2) if math.isfinite(ours) else "never"
    return Claim(id_, claim, paper, number, "x", verdict, f"{where}; {detail}")


def _ratio(other: float, one: float) -> float:
    return math.nan if math.isinf(other) and math.isinf(one) else other / one


def rivals_section() -> Iterator[Claim]:
    """Figure 15: how much sooner SMA is there."""
    papers = {
        "hogwild": {1: 1.8, 8: 1.5},
        "ea-sgd": {1: 1.1, 8: 1.4},
        "sync_sgd": {1: "sooner", 8: "sooner"},
        "sma, no momentum": {1: "sooner", 8: "sooner"},
    }
    for name, paper in papers.items():
        for gpus, learners in LEARNERS.items():
            _, sma, _, best = medians("sma", gpus, learners)
            _, other, _, other_best = medians(name, gpus, learners)
            yield ratio_claim(
                f"rivals/{name.replace(', ', '_').replace(' ', '_')}/{gpus}",
                f"SMA reaches the target sooner than {name}",
                paper[gpus],
                _ratio(other, sma),
                f"seconds {sma:.3g} and {other:.3g} to {target(gpus)}; best accuracy "
                f"{best} and {other_best}",
                setting(gpus, learners),
            )


def restart_section() -> Iterator[Claim]:
    """Figure 15 and Section 3.2: a restart where the rate drops."""
    for gpus, learners in LEARNERS.items():
        found = {
            name: [h.best() for h in trained(f"drop, {name}", gpus, learners)]
            for name in ("restart", "momentum kept", "no restart")
        }
        sign = claims.ahead(found["restart"], found["no restart"])
        yield Claim(
            f"restart/{gpus}",
            "a restart at the drop of the rate improves accuracy",
            "improves",
            "; ".join(f"{name} {claims.spread(v)}" for name, v in found.items()),
            "accuracy",
            claims.by_sign(sign),
            f"{setting(gpus, learners)}; rate / 10 after {0.6 * FLAGS.epochs:g} epochs",
        )


def tau_section() -> Iterator[Claim]:
    """Figure 17: seldom synchronisation is faster per step and slower to the target."""
    gpus, learners = 8, 2
    _, first, rate, best = medians("sma", gpus, learners)
    for tau in (2, 3, 4):
        _, seconds, other_rate, other_best = medians(f"tau={tau}", gpus, learners)
        yield ratio_claim(
            f"tau/{tau}/throughput",
            f"images per second with tau = {tau}, over tau = 1",
            1.31 if tau == 4 else "more",
            other_rate / rate,
            "the next steps overlap with the merge, which an MLP's size makes short",
            setting(gpus, learners),
        )
        yield ratio_claim(
            f"tau/{tau}/time",
            f"time to the target with tau = {tau}, over tau = 1",
            1.53 if tau == 4 else "longer",
            _ratio(seconds, first),
            f"seconds {first:.3g} and {seconds:.3g}; best {best} and {other_best}",
            setting(gpus, learners),
        )


def learners_section() -> Iterator[Claim]:
    """Figures 12 and 13: more learners per GPU."""
    for gpus, (best_m, paper_rate, paper_time) in {
        1: (4, 1.4, 3.2),
        8: (2, 1.3, 1.3),
    }.items():
        first = medians("sma", gpus, 1)
        swept = {m: medians("sma", gpus, m) for m in (1, 2, 3, 4, 5)[: best_m + 1]}
        sweep = "; ".join(
            f"m={m}: {epochs:.3g} epochs, {seconds:.3g} s, {rate:,.0f}/s"
            for m, (epochs, seconds, rate, _) in swept.items()
        )
        chosen = swept[best_m]
        pairs = {
            "throughput": (paper_rate, chosen[2] / first[2]),
            "time": (paper_time, _ratio(first[1], chosen[1])),
            "epochs": (30 / 14 if gpus == 1 else "no change", first[0] / chosen[0]),
        }
        for what, (paper, ours) in pairs.items():
            yield ratio_claim(
                f"learners/{gpus}/{what}",
                f"{what} with {best_m} learners per GPU, gain over one",
                paper,
                ours,
                sweep,
                setting(gpus, best_m),
            )


if __name__ == "__main__":
    scripts.run(
        lambda: claims.main(
            {
                "tuner": tuner_section,
                "tuner_paper": tuner_paper_section,
                "rivals": rivals_section,
                "restart": restart_section,
                "tau": tau_section,
                "learners": learners_section,
            }
        )
    )
