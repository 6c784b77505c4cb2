"""Adaptive SGD's claims: accuracy, time, components, batch sizes, perturbation.

    export HETJAX_DATA=DIR
    python experiments/papers/adaptive_sgd.py \\
        --flagfile=experiments/papers/flags/adaptive_sgd.bibtex.flags
    python experiments/papers/adaptive_sgd.py --flagfile=... --tune=each \\
        --out=results_each --runs=results_bibtex/runs              (each its own rate)
    python experiments/papers/adaptive_sgd.py --only=scaling       (seconds, no data)
    python experiments/papers/adaptive_sgd.py --quick              (minutes)

The paper's sparse MLP with 128 hidden units on extreme-classification data (--quick:
synthetic), on 4, 2 and 1 heterogeneous V100s, in the proportions of the paper's own
setting: see `adaptive_regime`. Learning rates are powers of ten, chosen on a held-out
tenth of the training data: one for all (--tune=common, the paper's protocol) or each
its own. Runs are stored in --runs, so that the same command resumes where it stopped
(with --overwrite for claims.json), and both protocols share them.
"""

import itertools
import math
from collections.abc import Iterator
from statistics import median

import hetjax as hj
from experiments.common import claims, scripts
from experiments.common.claims import Claim
from experiments.papers import adaptive_parts, settling
from experiments.papers import adaptive_regime as regime
from experiments.papers.adaptive_regime import OTHERS, PAPER, WORKERS, setting

EQUAL_UPDATES = "no weight changes where all updates are equal"
# Adaptive SGD with the paper's perturbation, and without it; how their claims' ids end
VARIANTS = {"adaptive_sgd": "", regime.UNPERTURBED: "/delta_0"}
SAID = {
    "adaptive_sgd": "Adaptive SGD",
    regime.UNPERTURBED: "Adaptive SGD with delta = 0",
}


def rates_section() -> Iterator[Claim]:
    """The strategies at every learning rate, and their order at Adaptive SGD's own."""
    tuning = regime.tuned("each").tuning
    assert tuning is not None
    for rate in tuning["scores"]["adaptive_sgd"]:
        scores = {name: found[rate] for name, found in tuning["scores"].items()}
        order = sorted(scores, key=lambda name: scores[name], reverse=True)
        yield Claim(
            f"rates/{rate}",
            f"best P@1 on a held-out tenth, all at learning rate {rate}",
            "",
            "; ".join(f"{k} {v:.3g}" for k, v in scores.items()),
            "P@1",
            f"{claims.OWN}: {', '.join(order)}",
            f"{setting(4, f'learning rate {rate}')}; here seed 0 alone",
        )
    comparison = regime.at_adaptives_rate()
    names = (regime.UNPERTURBED, "adaptive_sgd", *OTHERS)
    found = {name: claims.bests(comparison, name) for name in names}
    rate = regime.chosen(comparison)["adaptive_sgd"]
    for variant, part in VARIANTS.items():
        holds = (
            claims.ahead(found[variant], found["elastic_sgd"]) >= 0
            and claims.ahead(found["elastic_sgd"], found["sma"]) == 1
            and claims.ahead(found["sma"], found["sync_sgd"]) >= 0
        )
        yield Claim(
            f"rates/order{part}",
            f"{SAID[variant]} >= Elastic > SMA >= sync SGD, all at learning rate "
            f"{rate:g}, the best for Adaptive SGD with delta = 0",
            ".400, .345, .33, .225; .420, .393, .405, .30",
            "; ".join(f"{k} {claims.spread(found[k])}" for k in (variant, *OTHERS)),
            "P@1",
            claims.by_fit(holds, "the order is another"),
            setting(4, f"learning rate {rate:g}"),
        )


def accuracy_section() -> Iterator[Claim]:
    """Figure 4: Adaptive SGD has the highest accuracy with every number of GPUs."""
    for workers in WORKERS:
        comparison = regime.of_rivals(workers)
        for (variant, part), name in itertools.product(VARIANTS.items(), OTHERS):
            if workers == 1 and name == "elastic_sgd":
                continue  # the two are equal: see workers/one
            mine, other = (claims.bests(comparison, n) for n in (variant, name))
            sign = claims.ahead(mine, other)
            verdict = claims.by_sign(sign, f"{name} is ahead in every seed")
            if not PAPER[name][workers]:
                verdict = f"{claims.OWN}: {claims.OUTCOME[sign]}"
            papers = PAPER["adaptive_sgd"][workers], PAPER[name][workers]
            yield Claim(
                f"accuracy/{name}/{workers}{part}",
                f"{SAID[variant]} has a higher best P@1 than {name} with {workers} "
                "GPUs",
                f"{papers[0]} against {papers[1] or '(no figure)'}",
                f"{claims.spread(mine)} against {claims.spread(other)}",
                "P@1",
                verdict,
                setting(workers),
            )


def workers_section() -> Iterator[Claim]:
    """More GPUs help Adaptive SGD; with one GPU it equals Elastic SGD."""
    four, two, one = (
        claims.bests(regime.of_rivals(n), "adaptive_sgd") for n in WORKERS
    )
    yield Claim(
        "workers/more",
        "Adaptive SGD is better with 4 GPUs than with 2, and with 2 than with 1",
        ".400, .387, .34 (Amazon-670k)",
        f"{claims.spread(four)}, {claims.spread(two)}, {claims.spread(one)}",
        "P@1",
        claims.by_sign(
            min(claims.ahead(four, two), claims.ahead(two, one)),
            "fewer GPUs are better in every seed",
        ),
        setting(4),
    )
    elastic = claims.bests(regime.of_rivals(1), "elastic_sgd")
    same = all(abs(a - b) < 5e-3 for a, b in zip(one, elastic, strict=True))
    yield Claim(
        "workers/one",
        "with one GPU Adaptive and Elastic SGD are the same",
        ".34 and .34",
        f"{claims.spread(one)} and {claims.spread(elastic)}",
        "P@1",
        claims.by_fit(same, "their accuracies differ"),
        setting(1),
    )


def time_section() -> Iterator[Claim]:
    """Figure 4: time to 97 % of the best accuracy."""
    for workers in WORKERS[:2]:
        comparison = regime.of_rivals(workers)
        target, names = comparison.target, comparison.strategies
        seconds = {k: [h.seconds_to(target) for h in comparison.of(k)] for k in names}
        others = [name for name in names if name not in VARIANTS]
        for variant, part in VARIANTS.items():
            mine = seconds[variant]
            signs = [claims.ahead(seconds[name], mine) for name in others]
            verdict = claims.by_sign(
                min(signs), "another strategy is first in every seed"
            )
            if math.isinf(median(mine)):
                verdict = claims.refuted("it does not reach the target")
            yield Claim(
                f"time/{workers}{part}",
                f"{SAID[variant]} reaches P@1 {target:g} before all others",
                "first",
                ", ".join(f"{k} {median(seconds[k]):.3g}" for k in (variant, *others)),
                "s",
                verdict,
                setting(workers),
            )


def efficiency_section() -> Iterator[Claim]:
    """Figure 5: accuracy at equal examples."""
    for workers in WORKERS[:2]:
        comparison = regime.of_rivals(workers)
        half = 0.5 * comparison.of("sync_sgd")[0].evals[-1]["examples"]
        bests = {
            name: [best_within(h, comparison.metric, half) for h in comparison.of(name)]
            for name in comparison.strategies
        }
        others = [name for name in bests if name not in VARIANTS]
        for variant, part in VARIANTS.items():
            signs = [claims.ahead(bests[variant], bests[name]) for name in others]
            yield Claim(
                f"efficiency/{workers}{part}",
                f"{SAID[variant]} has the best P@1 within the first {half:,.0f} "
                "examples (Figure 5)",
                "best",
                "; ".join(f"{k} {claims.spread(bests[k])}" for k in (variant, *others)),
                "P@1",
                claims.by_sign(min(signs), "another strategy is ahead in every seed"),
                setting(workers),
            )


def best_within(history: hj.History, metric: str, examples: float) -> float:
    """The best value of a metric before more than so many examples are done."""
    return max(p[metric] for p in history.evals if p["examples"] <= examples)


def perturbation_section() -> Iterator[Claim]:
    """Figure 6 (b): how often the weights are perturbed."""
    for workers in WORKERS[:2]:
        histories = regime.of_rivals(workers).of("adaptive_sgd")
        merges = sum(h.merges for h in histories)
        if not merges:
            raise ValueError(
                f"--seconds={regime.seconds():g}: adaptive_sgd on {workers} workers "
                "has no merge by then: pass more seconds"
            )
        for counter, what, why in (
            (
                "condition_met",
                "meet the perturbation's condition",
                "the condition is met less often",
            ),
            ("weights_changed", "perturb a weight", EQUAL_UPDATES),
        ):
            found = sum(h.evals[-1][counter] for h in histories)
            share = 100 * found / merges
            yield Claim(
                f"perturbation/{counter}/{workers}",
                f"share of the merges that {what}",
                "very high",
                round(share, 1),
                "%",
                claims.by_fit(share > 90, why),
                f"{found:.0f} of {merges} merges; {setting(workers)}",
            )


def waiting_section() -> Iterator[Claim]:
    """Dynamic dispatch: the workers hardly wait."""
    comparison = regime.of_rivals(4)
    for name in ("adaptive_sgd", "elastic_sgd"):
        share = 100 * median(h.waiting_share() for h in comparison.of(name))
        fits = share < 3 if name == "adaptive_sgd" else 3 < share <= 32
        yield Claim(
            f"waiting/{name}",
            f"share of the time that {name}'s GPUs wait",
            "little" if name == "adaptive_sgd" else "up to the gap of 32 %",
            round(share, 2),
            "%",
            claims.by_fit(fits, "the share is outside that range"),
            setting(4),
        )


def figures() -> Iterator[Claim]:
    """The paper's figures, drawn from our runs; they are not claims."""
    comparison = regime.at_adaptives_rate()
    rate = f"learning rate {regime.chosen(comparison)['adaptive_sgd']:g}"
    yield claims.picture(
        "figures/order",
        "order.png",
        comparison.plot(),
        "accuracy over virtual time, at Adaptive SGD's own learning rate for all",
        "Figure 4",
        setting(4, rate),
    )
    for workers in WORKERS[:2]:
        comparison = regime.of_rivals(workers)
        for what, paper, figure in (
            ("accuracy over virtual time", "Figure 4", comparison.plot()),
            ("accuracy over examples", "Figure 5", comparison.plot("examples")),
            ("batch sizes", "Figure 6 (a)", comparison.plot_batch_sizes()),
        ):
            name = f"v100x{workers}_{what.replace(' ', '_')}"
            yield claims.picture(
                f"figures/{name}", f"{name}.png", figure, what, paper, setting(workers)
            )


if __name__ == "__main__":
    scripts.run(
        lambda: claims.main(
            {
                "scaling": settling.scaling_section,
                "accuracy": accuracy_section,
                "workers": workers_section,
                "time": time_section,
                "efficiency": efficiency_section,
                "perturbation": perturbation_section,
                "waiting": waiting_section,
                "rates": rates_section,
                "components": adaptive_parts.components_section,
                "recommended": adaptive_parts.recommended_section,
                "slide": adaptive_parts.slide_section,
                "figures": figures,
            },
            by_clock=("scaling",),
            before_training=regime.task,
        )
    )
