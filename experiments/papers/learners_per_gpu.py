"""CROSSBOW's tuner of learners per GPU (Figure 14), on the virtual clock alone.

A GPU's throughput with several learners is that of CROSSBOW's Figure 14 where the
paper's text gives it. The points in between are ours, chosen so that every gain up to
the best number is above the rule's threshold of 10 %. The claims show what each rule
does on such curves.
"""

from collections.abc import Iterator
from typing import Any

import hetjax as hj
from experiments.common.claims import Claim, by_fit
from hetjax.machine import Machine, SimulatedClock, preset

# Throughput with 1, 2, ... learners, relative to one learner. The text on Figure 14
# says: ResNet-32 gains 1.4 x with 4 learners on one GPU and then falls; on eight GPUs
# it gains 1.3 x with 2 learners and stays there. VGG stops growing with 3 learners on
# one GPU and with 2 on eight. All other points are ours.
CURVES = {
    ("resnet32", 1): (1.0, 1.12, 1.25, 1.4, 1.35, 1.3),
    ("resnet32", 8): (1.0, 1.3, 1.3, 1.3),
    ("vgg", 1): (1.0, 1.15, 1.3, 1.3, 1.3),
    ("vgg", 8): (1.0, 1.15, 1.15, 1.15),
}
BEST = {("resnet32", 1): 4, ("resnet32", 8): 2, ("vgg", 1): 3, ("vgg", 8): 2}


def servers(gpus: int, learners: int, model: str = "resnet32") -> Machine:
    """Equal GPUs with the given number of learners each, and 2 % noise."""
    return preset(f"uniform:{gpus}").with_workers_per_device(
        learners, CURVES[model, gpus]
    )


def tuner_section() -> Iterator[Claim]:
    """The number of learners that the public code's rule chooses."""
    return _choices("tuner", "stop_at_first_drop")


def tuner_paper_section() -> Iterator[Claim]:
    """The number that the paper's own rule chooses; it cannot leave a plateau."""
    return _choices("tuner_paper", "paper")


def _choices(section: str, rule: str) -> Iterator[Claim]:
    for (model, gpus), best in BEST.items():
        path = _tuned(model, gpus, rule)
        fits = path[-1] == best
        verdict = by_fit(fits, f"the tuner goes through {_path(path)}")
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


def _tuned(model: str, gpus: int, rule: Any) -> list[int]:
    """Learners per GPU after every change, over 400 rounds."""
    machine = servers(gpus, 6, model).without_noise()
    policy = hj.schedule.tuned_workers(
        hj.schedule.rounds(
            batch_size=64, first=hj.schedule.one_per_device, blocking=False
        ),
        rule=rule,
    )
    path, rounds, total = [1], 0, gpus
    clock = SimulatedClock(machine, seed=0)
    # merges take no extra time: the curve was measured with merges
    for event, actions in hj.decisions(policy, clock, num_examples=50_000):
        if event is not None:
            total += len(actions.start) - len(actions.stop)
            rounds += bool(actions.merges)
        if total / gpus != path[-1]:
            path.append(total // gpus)
        if rounds == 400:
            break
    return path
