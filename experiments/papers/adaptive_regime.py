"""Adaptive SGD's own regime: the data, machines and strategies of `adaptive_sgd.py`.

The paper trains Amazon-670k: a mega-batch of 100 batches of 1024 examples is a fifth of
an epoch, a step of the slowest of four V100s takes 112 ms, and a merge 62 ms. Here
batches are as small as the data need for such mega-batches, and the machine is scaled
to them and to the model, so that steps and merges take as long as there.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.common import bounds, claims, named_data
from experiments.common.bounds import bounded, bounded_list
from hetjax import tree
from hetjax.machine import like_amazon670k

FLAGS = flags.FLAGS
flags.DEFINE_string("data", "bibtex", named_data.HELP)
flags.DEFINE_integer("labels", None, "restrict the data to this many common labels")
flags.DEFINE_integer("hidden", 128, "hidden units")
flags.DEFINE_integer(
    "batch_size", None, "b_max; by default 100 of them are a fifth of an epoch"
)
flags.DEFINE_float("seconds", 400.0, "virtual seconds of every run")
flags.DEFINE_integer("num_evals", 80, "evaluations of a run")
flags.DEFINE_integer(
    "eval_examples", None, "test examples of an evaluation; by default all"
)
flags.DEFINE_string("runs", None, "where runs are stored; by default runs in --out")
flags.DEFINE_list(
    "learning_rates", ["0.001", "0.01", "0.1", "1", "10"], "to choose from, at b_max"
)
flags.DEFINE_enum(
    "tune", "common", ["common", "each"], "one rate for all, or each its own"
)
flags.DEFINE_float("merge_momentum", 0.9, "gamma of Elastic and Adaptive SGD's merge")
flags.DEFINE_float("delta", 0.1, "of Adaptive SGD's perturbation")
bounded("batch_size", *bounds.BATCH_SIZE)
bounded("labels", 1, 2**31 - 1, "there are labels to learn")
bounded("hidden", 1, 2**20, "the model has hidden units")
bounded("num_evals", *bounds.EVALS)
bounded("eval_examples", 1, 2**31 - 1, "an evaluation has examples")
bounded("seconds", *bounds.SECONDS)
bounded("merge_momentum", *bounds.MOMENTUM)
bounded("delta", 0, 1 - 1e-9, "it is the share by which a weight grows")
bounded_list("learning_rates", *bounds.LEARNING_RATE)

SLIDE_RATES = (0.0001, 0.001, 0.01)  # of Adam, at b_max
SHARE = 0.2  # of an epoch in a mega-batch of 100 b_max
SCALINGS = ("none", "paper", "hgpu_code", "measured")
WORKERS = (4, 2, 1)
OTHERS = ("elastic_sgd", "sma", "sync_sgd")  # the paper's rivals
# best P@1 in the authors' plots, on Amazon-670k and Delicious-200k
PAPER = {
    "adaptive_sgd": {4: ".400, .420", 2: ".387, .420", 1: ".34, .38"},
    "elastic_sgd": {4: ".345, .393", 2: ".348, .397", 1: ".34, .38"},
    "sma": {4: ".33, .405", 2: ".325, .40", 1: ".34, .366"},
    "sync_sgd": {4: ".225, .30 (TensorFlow)", 2: "", 1: ""},
}
UNPERTURBED = "adaptive_sgd, delta 0"
GAMMAS, DELTAS = (0.9, 0.0), (0.1, 0.0)


@cache
def data() -> hj.data.Dataset:
    """The data set; a small synthetic one for a smoke run."""
    if FLAGS.quick:
        return hj.data.synthetic_xmc(rows=800, test_rows=200, labels=60)
    found = named_data.load(FLAGS.data)
    if FLAGS.labels is None:
        return found
    if FLAGS.labels > found.num_classes:
        raise ValueError(
            f"--labels={FLAGS.labels}: {FLAGS.data} has {found.num_classes:,} labels"
        )
    return hj.data.commonest_labels(found, FLAGS.labels)


@cache
def task(output: str = "auto") -> hj.Task:
    """The paper's model with this output layer."""
    model = named_data.model("mlp", data(), FLAGS.hidden)
    return hj.classification(model, data(), output=output)


def batch_size() -> int:
    """b_max: by default 100 of them are a fifth of an epoch."""
    return FLAGS.batch_size or max(2, round(SHARE * len(data().train) / 100))


def machine(name: str) -> hj.machine.Machine:
    """A machine of the paper's setting, scaled to the model and to b_max."""
    params, _ = jax.eval_shape(task().init, jax.random.key(0))
    num_bytes = tree.num_bytes(params)
    return like_amazon670k(name, batch_size=batch_size(), num_bytes=num_bytes)


def rates() -> tuple[float, ...]:
    """The learning rates to choose from."""
    found = bounds.numbers("learning_rates", FLAGS.learning_rates)
    return tuple(found[2:3] if FLAGS.quick and len(found) > 2 else found)


def seconds() -> float:
    """Virtual seconds of a run."""
    return 5.0 if FLAGS.quick else FLAGS.seconds


def adaptive(gamma: float, delta: float, scaling: Any) -> Callable[..., Any]:
    """Adaptive SGD with these settings, at a learning rate."""
    return partial(
        hj.adaptive_sgd,
        batch_size=batch_size(),
        merge_momentum=gamma,
        delta=delta,
        scaling=scaling,
    )


def rivals() -> dict[str, Callable[..., hj.Strategy]]:
    """The paper's strategies; batch steps are the public code's.

    The paper's own rule does not settle at these costs (section `scaling`).
    """
    size, gamma = {"batch_size": batch_size()}, FLAGS.merge_momentum
    return {
        "adaptive_sgd": adaptive(gamma, FLAGS.delta, "hgpu_code"),
        UNPERTURBED: adaptive(gamma, 0.0, "hgpu_code"),
        "elastic_sgd": partial(hj.elastic_sgd, **size, merge_momentum=gamma),
        "sma": partial(hj.sma, **size),
        "sma, no overlap": partial(hj.sma, **size, blocking=True),
        "sync_sgd": partial(hj.sync_sgd, **size),
    }


def components() -> dict[str, Callable[..., hj.Strategy]]:
    """Adaptive SGD with and without each part, and Elastic SGD, which has none."""
    found: dict[str, Callable[..., hj.Strategy]] = {
        component(gamma, delta, scaling): adaptive(gamma, delta, scaling)
        for gamma in GAMMAS
        for delta in DELTAS
        for scaling in SCALINGS
    }
    for gamma in GAMMAS:
        found[f"elastic, gamma {gamma:g}"] = partial(
            hj.elastic_sgd, batch_size=batch_size(), merge_momentum=gamma
        )
    return found


def component(gamma: float, delta: float, scaling: str) -> str:
    """The name of one of `components`."""
    return f"adaptive, gamma {gamma:g}, delta {delta:g}, {scaling}"


def at(
    factories: dict[str, Callable[..., hj.Strategy]], chosen: dict[str, float] | float
) -> dict[str, hj.Strategy]:
    """The strategies at one learning rate, or each at its own."""
    return {
        name: factory(
            learning_rate=chosen[name] if isinstance(chosen, dict) else chosen
        )
        for name, factory in factories.items()
    }


def compared(
    name: str,
    on: str,
    strategies: dict[str, hj.Strategy],
    *,
    tune: str = "common",
    rates: tuple[float, ...] = (),
    output: str = "auto",
) -> hj.Comparison:
    """The runs of these strategies, stored in --runs under the name: done only once."""
    return claims.compare(
        task(output),
        data(),
        machine(on),
        strategies,
        seconds=seconds(),
        seeds=tuple(claims.seeds()),
        num_evals=FLAGS.num_evals,
        eval_examples=FLAGS.eval_examples,
        learning_rates=rates,
        tune=tune,
        out=Path(FLAGS.runs or Path(FLAGS.out) / "runs") / name,
    )


@cache
def tuned(tune: str, *only: float) -> hj.Comparison:
    """The rivals on four GPUs, at the rates that are chosen; `only` some are tried.

    All such comparisons share their runs.
    """
    first = at(rivals(), rates()[0])
    return compared("rivals_4", machine_of(4), first, tune=tune, rates=only or rates())


def at_adaptives_rate() -> hj.Comparison:
    """The rivals on four GPUs, all at the rate that is best for unperturbed merges."""
    return tuned("common", chosen(tuned("each"))[UNPERTURBED])


@cache
def of_rivals(workers: int) -> hj.Comparison:
    """The rivals on a number of GPUs, at the rates that were chosen on four."""
    if workers == 4:
        return tuned(FLAGS.tune)
    strategies = at(rivals(), chosen(tuned(FLAGS.tune)))
    return compared(f"{FLAGS.tune}_{workers}", machine_of(workers), strategies)


@cache
def of_components(*only: str) -> hj.Comparison:
    """The components on four GPUs, each at its own rate; `only` some of them.

    All such comparisons share their runs.
    """
    wanted = {k: v for k, v in components().items() if not only or k in only}
    first = at(wanted, rates()[0])
    return compared("components", machine_of(4), first, tune="each", rates=rates())


def of_all(names: Sequence[str]) -> tuple[hj.Comparison, dict[str, float]]:
    """These of the rivals and components on four GPUs, and each one's own rate."""
    rivals, parts = tuned("each"), of_components(*names)
    histories = [*rivals.histories, *parts.histories]
    comparison = hj.Comparison(
        [h for h in histories if h.strategy in names],
        data=parts.data,
        machine=parts.machine,
    )
    return comparison, chosen(rivals) | chosen(parts)


@cache
def of_slide() -> hj.Comparison:
    """SLIDE on its CPU, at its own rate."""
    factories = {"slide": partial(hj.slide, batch_size=batch_size())}
    return compared(
        "slide",
        "slide-amazon670k",
        at(factories, SLIDE_RATES[0]),
        tune="each",
        rates=SLIDE_RATES[:1] if FLAGS.quick else SLIDE_RATES,
        output="slide",
    )


def machine_of(workers: int) -> str:
    """The name of the machine with a number of GPUs."""
    return f"v100x{workers}-amazon670k"


def chosen(comparison: hj.Comparison) -> dict[str, float]:
    """The learning rate of each strategy that a comparison has tuned."""
    assert comparison.tuning is not None
    return comparison.tuning["chosen"]


def place(workers: int) -> str:
    """The settings of every claim."""
    return (
        f"{data().name}, {machine_of(workers)} scaled, b_max {batch_size()}, "
        f"{seconds():g} s, {len(claims.seeds())} seeds"
    )


def setting(workers: int, learning_rate: str = "") -> str:
    """The settings of a claim on the paper's strategies, at the rate of --tune."""
    rate = learning_rate or f"{FLAGS.tune} learning rate"
    gamma, delta = FLAGS.merge_momentum, FLAGS.delta
    return f"{place(workers)}, {rate}, gamma {gamma:g}, delta {delta:g}"
