"""Claims of the DiLoCo family: seldom merges, asynchronous reports, unlike data.

    python experiments/papers/diloco.py                             (ten minutes)
    python experiments/papers/diloco.py --only=local_steps
    python experiments/papers/diloco.py --quick                     (two minutes)

DiLoCo (Douillard et al. 2023, arXiv 2311.08105) trains with hundreds of local steps
between merges. Asynchronous Local-SGD (Liu et al. 2024, arXiv 2401.09135) finds that
reports of workers of different speeds slow it down per update, and repairs that with a
delayed Nesterov momentum and local steps in proportion to speed (DyLU). HeLoCo (Al Asif
et al. 2026, arXiv 2606.00271) corrects late reports on unlike data.

The model is a transformer of one block on characters of made-up languages, of which
each has a share of the text; the inner optimizer is AdamW, the outer one Nesterov's.
Workers are those of four-speeds, the asynchronous paper's, and four equal ones for the
first claim. Each strategy has its own inner and outer rate, chosen among the same pairs
on a held-out tenth of the training text. A loss is the logarithm of a perplexity.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import optax
from absl import flags

import hetjax as hj
from experiments.common import bounds, characters, claims, scripts
from experiments.common.bounds import bounded, bounded_list
from experiments.common.claims import Claim
from hetjax.data.held_out import held_out_rows
from hetjax.machine import Machine

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 512, "local steps of the fastest worker in a run")
flags.DEFINE_integer("batch_size", 8, "sequences of a local step")
flags.DEFINE_integer("local_steps", 16, "local steps between merges (H)")
flags.DEFINE_list("periods", ["4", "8", "16", "32", "64"], "H of the first claim")
flags.DEFINE_list("inner", ["0.003", "0.01", "0.03"], "rates of AdamW to choose from")
flags.DEFINE_list("outer", ["0.1", "0.3", "0.7"], "outer rates to choose from")
flags.DEFINE_float("alpha", 0.1, "of the Dirichlet distribution of unlike shards")
bounded("steps", 1, 10_000_000, "a run needs local steps")
bounded("batch_size", *bounds.BATCH_SIZE)
bounded("local_steps", 2, 100_000, "there are several steps between merges")
bounded("alpha", 1e-6, 1_000_000, "it is a concentration, about 0.3")
bounded_list("inner", *bounds.LEARNING_RATE)
bounded_list("outer", *bounds.LEARNING_RATE)

EVALS = 16
SAME = 0.05  # losses that differ by less, relatively, count as nearly the same
EQUAL, FOUR = "uniform:4", "four-speeds"
IID, UNLIKE = "iid", "unlike"
FACTORIES = ("diloco", "async_diloco", "delayed_nesterov", "mla", "heloco")


class Setting(NamedTuple):
    """A strategy on a machine and a partition."""

    name: str
    local_steps: int | str
    machine: str = FOUR
    partition: str = IID


def check() -> None:
    """Raise a ValueError if the package or the flags lack what the claims need."""
    missing = [name for name in FACTORIES if name not in hj.STRATEGIES]
    if missing:
        raise ValueError(f"this version of hetjax has no {', '.join(missing)}")
    if min(bounds.whole_numbers("periods", FLAGS.periods)) < 1:
        raise ValueError(
            f"--periods={','.join(FLAGS.periods)}: pass numbers from 1: "
            "a round has local steps"
        )


@cache
def problem() -> tuple[hj.Task, hj.data.Dataset, Any]:
    """The task, its data, and the language of each training sequence."""
    data, languages = characters.text(train=1024 if FLAGS.quick else 4096, test=512)
    return characters.task(data), data, languages


def seconds(machine: Machine) -> float:
    """Seconds of a run: the fastest worker's steps."""
    infos = machine.worker_infos(0.0)
    steps = min(64, FLAGS.steps) if FLAGS.quick else FLAGS.steps
    return steps * min(info.seconds(FLAGS.batch_size) for info in infos)


def strategy(setting: Setting, inner: float, outer: float, rows: Any) -> hj.Strategy:
    """The strategy at these rates; on unlike data with shards of these rows."""
    made = hj.STRATEGIES[setting.name](
        batch_size=FLAGS.batch_size,
        learning_rate=inner,
        local_steps=setting.local_steps,
        outer_learning_rate=outer,
        outer_momentum=0.9,
        optimizer=optax.adamw,
    )
    if setting.partition == IID:
        return made
    languages = problem()[2] if rows is None else problem()[2][rows]

    def partition(workers: int, seed: int) -> Any:
        return hj.data.dirichlet(languages, workers, alpha=FLAGS.alpha, seed=seed)

    return made._replace(sampler=hj.sampling.sharded(partition))


def _compare(
    setting: Setting, data: Any, strategies: dict[str, hj.Strategy], seeds: Any
) -> hj.Comparison:
    machine = hj.machine.preset(setting.machine)
    return claims.compare(
        problem()[0],
        data,
        machine,
        strategies,
        seconds=seconds(machine),
        seeds=seeds,
        num_evals=EVALS,
        progress=False,
    )


@cache
def rates(setting: Setting) -> tuple[float, float]:
    """The inner and outer rate with the best final perplexity on held-out text."""
    data = problem()[1]
    rest, held = held_out_rows(len(data.train), 0)
    split = replace(data, train=data.train.take(rest), test=data.train.take(held))
    inner, outer = (bounds.numbers(f, FLAGS[f].value or ()) for f in ("inner", "outer"))
    if FLAGS.quick:
        inner, outer = inner[:1], outer[-1:]
    pairs = {f"{o} {i}": (i, o) for o in outer for i in inner}
    strategies = {n: strategy(setting, *pair, rest) for n, pair in pairs.items()}
    found = _compare(setting, split, strategies, (0,))
    ends = {h.strategy: math.inf if h.stopped else h.final() for h in found.histories}
    return pairs[min(ends, key=lambda name: _or_worst(ends[name]))]


def _or_worst(perplexity: float) -> float:
    return math.inf if math.isnan(perplexity) else perplexity


@cache
def trained(setting: Setting) -> tuple[hj.History, ...]:
    """One run per seed, at the strategy's own rates."""
    own = {setting.name: strategy(setting, *rates(setting), None)}
    seeds = tuple(claims.seeds())
    return tuple(_compare(setting, problem()[1], own, seeds).histories)


def losses(setting: Setting, updates: float = math.inf) -> list[float]:
    """The test loss of each seed: at the end, or after so many local steps in all.

    It is interpolated between evaluations.
    """
    found = []
    for history in trained(setting):
        steps = [p["updates"] for p in history.evals]
        each = [math.log(p["perplexity"]) for p in history.evals]
        found.append(float(np.interp(min(updates, steps[-1]), steps, each)))
    return found


def _updates(setting: Setting) -> float:
    """Local steps of all workers by the end, of the seed that has the fewest."""
    return min(h.evals[-1]["updates"] for h in trained(setting))


def _how(*settings: Setting) -> str:
    own = (
        f"{s.name} inner {rates(s)[0]:g}, outer {rates(s)[1]:g}, H {s.local_steps}"
        for s in settings
    )
    one = settings[0]
    return (
        f"{one.machine}, {one.partition}, {trained(one)[0].duration:.3g} s, "
        f"{len(claims.seeds())} seeds; {'; '.join(own)}"
    )


def local_steps_section() -> Iterator[Claim]:
    """DiLoCo's loss for several H, at equal local steps on equal workers."""
    periods = bounds.whole_numbers("periods", FLAGS.periods)
    settings = {h: Setting("diloco", h, EQUAL) for h in periods}
    few, many = settings[min(periods)], settings[max(periods)]
    ratio = median(losses(many)) / median(losses(few))
    moved = [sum(w.bytes_sent for w in trained(s)[0].workers) for s in (few, many)]
    yield Claim(
        "local_steps/iid",
        f"on IID data DiLoCo loses little with {max(periods) // min(periods)} times "
        "fewer merges",
        "a mild loss from H = 50 to 1,000",
        "; ".join(f"H {h}: {claims.spread(losses(s))}" for h, s in settings.items()),
        "loss",
        claims.by_fit(
            ratio < 1 + SAME, f"the loss is {100 * (ratio - 1):.0f} % higher"
        ),
        f"{_how(*settings.values())}; {moved[0] / max(1, moved[1]):.1f} times fewer "
        "bytes",
    )


def async_section() -> Iterator[Claim]:
    """Asynchronous DiLoCo against synchronous, per update and per second."""
    h = FLAGS.local_steps
    sync, plain = Setting("diloco", h), Setting("async_diloco", h)
    delayed = Setting("delayed_nesterov", f"measured:{h}")
    equal = min(map(_updates, (sync, plain, delayed)))
    at_equal = {s: losses(s, equal) for s in (sync, plain, delayed)}
    yield Claim(
        "async/updates",
        "at equal updates asynchronous DiLoCo is behind synchronous DiLoCo",
        "it takes more updates",
        f"{claims.spread(at_equal[plain])} against {claims.spread(at_equal[sync])}",
        "loss",
        claims.by_sign(
            claims.ahead(at_equal[plain], at_equal[sync]), "it is ahead in every seed"
        ),
        f"{_how(sync, plain)}; {equal:,.0f} local steps in all",
    )
    ratio = median(at_equal[delayed]) / median(at_equal[sync])
    yield Claim(
        "async/delayed_updates",
        "at equal updates delayed Nesterov with DyLU matches synchronous DiLoCo",
        "it matches",
        f"{claims.spread(at_equal[delayed])} against {claims.spread(at_equal[sync])}",
        "loss",
        claims.by_fit(
            ratio < 1 + SAME, f"the loss is {100 * (ratio - 1):.0f} % higher"
        ),
        f"{_how(sync, delayed)}; {equal:,.0f} local steps in all",
    )
    ends = losses(sync), losses(delayed)
    yield Claim(
        "async/time",
        "at equal time delayed Nesterov with DyLU is ahead of synchronous DiLoCo",
        "it is ahead by far",
        f"{claims.spread(ends[1])} against {claims.spread(ends[0])}",
        "loss",
        claims.by_sign(claims.ahead(*ends), "synchronous DiLoCo is ahead"),
        _how(sync, delayed),
    )


def unlike_section() -> Iterator[Claim]:
    """HeLoCo against momentum look-ahead on unlike shards, at equal time."""
    mla, heloco = (
        Setting(n, FLAGS.local_steps, FOUR, UNLIKE) for n in ("mla", "heloco")
    )
    before, after = losses(mla), losses(heloco)
    gain = 100 * (1 - median(after) / median(before))
    yield Claim(
        "unlike/heloco",
        "on unlike data HeLoCo is ahead of momentum look-ahead at equal time",
        "up to 3.3 % less loss",
        f"{claims.spread(after)} against {claims.spread(before)}, "
        f"{abs(gain):.1f} % {'less' if gain >= 0 else 'more'}",
        "loss",
        claims.by_sign(
            claims.ahead(before, after), "momentum look-ahead is ahead in every seed"
        ),
        _how(mla, heloco),
    )


if __name__ == "__main__":
    scripts.run(
        lambda: claims.main(
            {
                "local_steps": local_steps_section,
                "async": async_section,
                "unlike": unlike_section,
            },
            before_training=check,
        )
    )
