"""The learning rate's schedule from flags: warm-up, steps, cosine, over epochs."""

import sys

import optax
from absl import flags

from experiments.common import bounds
from experiments.common.bounds import bounded
from hetjax.schedule import LearningRate, LearningRateLike

FLAGS = flags.FLAGS
flags.DEFINE_float(
    "epochs", None, "passes over the training data, after which a run ends"
)
flags.DEFINE_enum(
    "schedule", "constant", ["constant", "steps", "cosine"], "of the learning rate"
)
flags.DEFINE_float("warmup_epochs", 0.0, "epochs in which the rate grows from 0")
flags.DEFINE_list("decay_at", [], "--schedule=steps: epochs at which the rate falls")
flags.DEFINE_float("decay_by", 0.1, "--schedule=steps: factor of each fall")
bounded("epochs", 1e-6, 1_000_000, "every epoch is trained")
bounded("warmup_epochs", 0, 1_000_000, "it is a number of epochs")
bounded("decay_by", 0, 1, "the rate falls")


def learning_rate(peak: float) -> LearningRateLike:
    """The learning rate of --learning_rate and the flags of a schedule.

        steps     peak * decay_by^(number of decay_at that are reached)
        cosine    peak (1 + cos(pi (e - warmup) / (epochs - warmup))) / 2

    at e epochs after the warm-up, in which it grows linearly from 0. Errors: a
    ValueError for flags that the schedule would ignore, or lacks.
    """
    kind, warmup = FLAGS.schedule, FLAGS.warmup_epochs
    _check(kind)
    if kind == "constant" and not warmup:
        return peak
    if kind == "steps":
        epochs = bounds.numbers("decay_at", FLAGS.decay_at)
        _note_late(epochs)
        falls = {epoch - warmup: FLAGS.decay_by for epoch in epochs}
        after = optax.piecewise_constant_schedule(peak, falls)
    elif kind == "cosine":
        after = optax.cosine_decay_schedule(peak, FLAGS.epochs - warmup)
    else:
        after = optax.constant_schedule(peak)
    if not warmup:
        return LearningRate(after, over="epochs")
    before = optax.linear_schedule(0.0, peak, warmup)
    joined = optax.join_schedules([before, after], [warmup])
    return LearningRate(joined, over="epochs")


def _check(kind: str) -> None:
    """Raise a ValueError for flags that do not fit each other."""
    if kind != "steps":
        for name in ("decay_at", "decay_by"):
            if FLAGS[name].present:
                raise ValueError(f"--{name} is for --schedule=steps, not {kind}")
    elif not FLAGS.decay_at:
        raise ValueError("--schedule=steps needs --decay_at, such as 60,80")
    if kind == "cosine" and FLAGS.epochs is None:
        raise ValueError("--schedule=cosine needs --epochs, at which it ends")
    warmup = FLAGS.warmup_epochs
    if warmup and FLAGS.epochs is not None and warmup >= FLAGS.epochs:
        raise ValueError(f"--warmup_epochs={warmup:g}: pass less than --epochs")
    falls = bounds.numbers("decay_at", FLAGS.decay_at)
    if any(not epoch > warmup for epoch in falls) or falls != sorted(set(falls)):
        raise ValueError(
            f"--decay_at={','.join(FLAGS.decay_at)}: pass rising epochs after the "
            f"warm-up's {warmup:g}"
        )


def _note_late(falls: list[float]) -> None:
    """Report falls that never come, as when a paper's settings run for fewer epochs."""
    late = [epoch for epoch in falls if FLAGS.epochs and epoch >= FLAGS.epochs]
    if late:
        print(
            f"--decay_at={','.join(FLAGS.decay_at)}: {len(late)} of {len(falls)} falls "
            f"would come after --epochs={FLAGS.epochs:g}",
            file=sys.stderr,
        )
