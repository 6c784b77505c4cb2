"""The contribution of each part of Adaptive SGD: sections of `adaptive_sgd.py`.

The paper makes no such claims, except on its rival SLIDE on a CPU.
"""

from collections.abc import Iterator
from statistics import median

import hetjax as hj
from experiments.common import claims
from experiments.common.claims import Claim
from experiments.papers import adaptive_regime as regime
from experiments.papers.adaptive_regime import PAPER, WORKERS, component, setting


def components_section() -> Iterator[Claim]:
    """The contribution of each part, at each variant's own learning rate."""
    comparison = regime.of_components()
    rates = regime.chosen(comparison)

    def result(name: str) -> str:
        reached = [h.seconds_to(comparison.target) for h in comparison.of(name)]
        best = claims.spread(claims.bests(comparison, name))
        return f"{best}, {median(reached):.4g} s at rate {rates[name]:g}"

    def claim(part: str, what: str, one: str, other: str, where: str) -> Claim:
        return Claim(
            f"components/{part}/{where}",
            f"{what}: best P@1, and seconds to {comparison.target:g}",
            "",
            f"{result(one)} against {result(other)}",
            "",
            f"{claims.OWN}: {outcome(comparison, one, other)}",
            f"{regime.place(4)}, each at its own learning rate",
        )

    plain = component(0.0, 0.0, "none")
    for gamma in regime.GAMMAS:
        own, elastic = component(gamma, 0.0, "none"), f"elastic, gamma {gamma:g}"
        yield claim(
            "dispatch", "dispatch against equal rounds", own, elastic, f"{gamma:g}"
        )
    for scaling in regime.SCALINGS[1:]:
        own = component(0.0, 0.0, scaling)
        yield claim("scaling", f"{scaling} scaling against none", own, plain, scaling)
    for gamma in regime.GAMMAS:
        own, other = (component(gamma, d, "hgpu_code") for d in regime.DELTAS)
        what = f"delta 0.1 against 0, gamma {gamma:g}"
        yield claim("perturbation", what, own, other, f"{gamma:g}")
    for delta in regime.DELTAS:
        own, other = (component(g, delta, "hgpu_code") for g in regime.GAMMAS)
        what = f"gamma 0.9 against 0, delta {delta:g}"
        yield claim("gamma", what, own, other, f"{delta:g}")
    yield dispatch(comparison, plain)


def outcome(comparison: hj.Comparison, one: str, other: str) -> str:
    """The comparison of two variants in accuracy and in time."""
    accuracy = claims.ahead(*(claims.bests(comparison, n) for n in (one, other)))
    times = [
        [h.seconds_to(comparison.target) for h in comparison.of(name)]
        for name in (other, one)
    ]
    time = claims.ahead(*times)
    return f"accuracy {claims.OUTCOME[accuracy]}, time {claims.OUTCOME[time]}"


RECOMMENDED = component(0.0, 0.0, "hgpu_code")  # the preset's settings
RIVALS = (
    component(0.0, 0.0, "measured"),
    component(0.0, 0.0, "none"),
    "elastic, gamma 0",
    "elastic_sgd",
    regime.UNPERTURBED,
    "adaptive_sgd",
    "sma",
    "sma, no overlap",
    "sync_sgd",
)


def recommended_section() -> Iterator[Claim]:
    """The recommended preset and all others, each at its own learning rate."""
    comparison, rates = regime.of_all((RECOMMENDED, *RIVALS))
    target = comparison.target
    for name in (RECOMMENDED, *RIVALS):
        seconds = median(h.seconds_to(target) for h in comparison.of(name))
        best = claims.spread(claims.bests(comparison, name))
        against = outcome(comparison, name, RECOMMENDED)
        yield Claim(
            f"recommended/{name}",
            f"{name}: best P@1, seconds to {target:g}, learning rate",
            "",
            f"{best}, {seconds:.4g} s, {rates[name]:g}",
            "",
            claims.OWN
            + (f": against the first, {against}" if name != RECOMMENDED else ""),
            f"{regime.place(4)}, each at its own learning rate",
        )


def dispatch(comparison: hj.Comparison, plain: str) -> Claim:
    """Dynamic dispatch alone: the seconds for the same number of examples."""
    ratios = []
    for own, elastic in zip(
        comparison.of(plain), comparison.of("elastic, gamma 0"), strict=True
    ):
        speeds = [
            sum(w.examples for w in h.workers) / h.duration for h in (own, elastic)
        ]
        ratios.append(speeds[1] / speeds[0])
    return Claim(
        "components/dispatch/seconds",
        "seconds for the same examples, dynamic dispatch over equal rounds",
        "",
        claims.spread(ratios),
        "",
        claims.OWN,
        f"{regime.place(4)}, gamma 0, delta 0, no scaling",
    )


def slide_section() -> Iterator[Claim]:
    """SLIDE on a CPU, at equal seconds and with P@1 of the full softmax."""
    slide = claims.bests(regime.of_slide(), "slide")
    rate = regime.chosen(regime.of_slide())["slide"]
    for workers in WORKERS:
        adaptive = claims.bests(regime.of_rivals(workers), "adaptive_sgd")
        yield Claim(
            f"slide/{workers}",
            f"Adaptive SGD on {workers} GPUs has a higher best P@1 than SLIDE on a CPU",
            f"{PAPER['adaptive_sgd'][workers]} against .315, .273",
            f"{claims.spread(adaptive)} against {claims.spread(slide)}",
            "P@1",
            claims.by_sign(claims.ahead(adaptive, slide), "SLIDE is ahead"),
            f"{setting(workers)}; SLIDE of 2020 (preset paper) with Adam at its own "
            f"learning rate, {rate:g}, and at its speed, an assumption (the paper's "
            "figures are of the optimized code, which is up to 7 times as fast)",
        )
