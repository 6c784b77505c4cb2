"""Callbacks for `train(on_eval=...)`: they see every evaluation, and may stop a run.

A callback is a function of an evaluation {"seconds", "updates", "examples", "loss",
metrics...}; the run ends if it returns `STOP`. An exception in it ends the run, whose
history is still returned. Pass several callbacks as a list. A callable object may have
two more methods: `begin(points)` is called when a run begins, with the evaluations from
before it was resumed, and `close()` when it ends: one object serves several runs in
turn.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from hetjax.arguments import Count, NotNegative, checked
from hetjax.atomic_files import naming
from hetjax.metric_mode import Mode, better

Point = dict[str, float]
OnEval = Callable[[Point], object]
_COUNTS = ("seconds", "updates", "examples")  # of an evaluation; all else is measured


class Stop(NamedTuple):
    """The return value of a callback that ends the run; `why` enters the history."""

    why: str = "on_eval returned STOP"


STOP: Final = Stop()


class Callbacks:
    """Several callbacks of one run, as one."""

    def __init__(
        self, on_eval: OnEval | Sequence[OnEval] | None, *, writes: bool = True
    ):
        """Unless this process `writes`, omit those that write files or send numbers."""
        given = [] if on_eval is None else on_eval
        every: list[Any] = [given] if callable(given) else list(given)
        self._all = [c for c in every if writes or not getattr(c, "writes", False)]

    def begin(self, points: Sequence[Point]) -> None:
        """Begin a run in all callbacks, or continue it after these evaluations."""
        for callback in self._all:
            if hasattr(callback, "begin"):
                callback.begin(points)

    def __call__(self, point: Point) -> str:
        """Pass an evaluation to all callbacks; return why the run must end, or "".

        The first exception is raised after all have been called.
        """
        answers, first = [], None
        for callback in self._all:
            try:
                answers.append(callback(dict(point)))
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
        return next((a.why for a in answers if isinstance(a, Stop)), "")

    def close(self) -> Exception | None:
        """Close all callbacks; return the first exception."""
        first = None
        for callback in self._all:
            try:
                if hasattr(callback, "close"):
                    callback.close()
            except Exception as error:
                first = first or error
        return first


class EarlyStopping:
    """Stops a run whose metric has not improved for `patience` evaluations.

    Evaluations before the run's first merge, which changes the model, do not count.

    >>> stopping = EarlyStopping("loss", mode="min", patience=1)
    >>> [bool(stopping({"loss": loss})) for loss in (1.0, 0.5, 0.6)]
    [False, False, True]
    """

    @checked
    def __init__(
        self,
        metric: str,
        *,
        mode: Mode,
        patience: Count = 10,
        min_delta: NotNegative = 0.0,
    ):
        """A value is an improvement if it is better by more than `min_delta`."""
        self._metric, self._mode, self._patience = metric, mode, patience
        self._least = min_delta if mode == "max" else -min_delta
        self.begin([])

    def begin(self, points: Sequence[Point]) -> None:
        """Discard another run's state; count the evaluations of this one so far."""
        self._best, self._since = float("nan"), 0
        self._untrained: Point | None = None  # the first evaluation, until another
        for point in points:
            self(point)

    def __call__(self, point: Point) -> Stop | None:
        """Count an evaluation."""
        if self._metric not in point:
            raise ValueError(
                f"EarlyStopping: an evaluation has no {self._metric!r}, only "
                f"{', '.join(point)}"
            )
        found = {k: v for k, v in point.items() if k not in _COUNTS}
        if self._untrained == found:
            return None
        self._untrained = found if self._untrained is None else {}
        value = point[self._metric]
        if better(value, self._best + self._least, self._mode):
            self._best, self._since = value, 0
        else:
            self._since += 1
        if self._since < self._patience:
            return None
        return Stop(
            f"{self._metric} has not improved on {self._best:.6g} for "
            f"{self._since} evaluations"
        )


class CSV:
    """Writes a line per evaluation to a file, without delay; replaces an old file."""

    writes = True

    def __init__(self, path: str | Path):
        """The file's folder must exist."""
        self._path = Path(path)

    def begin(self, points: Sequence[Point]) -> None:
        """Open the file; write the evaluations of the run so far."""
        # stays open until the run ends
        self._file = self._path.open("w", newline="", encoding="utf-8")
        self._writer: Any = None
        for point in points:
            self(point)

    def __call__(self, point: Point) -> None:
        """Write an evaluation."""
        with naming(self._path):
            if self._writer is None:
                names = dict.fromkeys((*point, "train_loss"))  # none at 0 s
                self._writer = csv.DictWriter(self._file, names, lineterminator="\n")
                self._writer.writeheader()
            self._writer.writerow(point)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Writes scalars for TensorBoard, over updates or examples.

    Needs the extra `hetjax[tensorboard]` (the package tensorboardX).
    """

    writes = True

    @checked
    def __init__(
        self, folder: str | Path, *, x: Literal["updates", "examples"] = "updates"
    ):
        """`x` is the step of a scalar: "updates" or "examples"."""
        try:
            import tensorboardX  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "hj.callbacks.TensorBoard needs tensorboardX: python -m pip install "
                "'hetjax[tensorboard]'"
            ) from error
        self._open, self._folder, self._x = tensorboardX.SummaryWriter, folder, x

    def begin(self, points: Sequence[Point]) -> None:
        """Open a file in the folder; write the evaluations of the run so far."""
        self._writer: Any = self._open(str(self._folder))
        for point in points:
            self(point)

    def __call__(self, point: Point) -> None:
        """Write an evaluation."""
        for name, value in point.items():
            self._writer.add_scalar(name, value, int(point[self._x]))

    def close(self) -> None:
        """Write buffered scalars, and close the file."""
        self._writer.close()


class WandB:
    """Logs evaluations to a run of Weights & Biases.

    Needs the extra `hetjax[wandb]`. `settings` are those of `wandb.init`.
    """

    writes = True

    def __init__(self, **settings: Any):
        """The run of Weights & Biases begins when training does."""
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "hj.callbacks.WandB needs wandb: python -m pip install 'hetjax[wandb]'"
            ) from error
        self._open, self._settings = wandb.init, settings

    def begin(self, points: Sequence[Point]) -> None:
        """Begin a run of Weights & Biases; log the evaluations so far."""
        self._run: Any = self._open(**self._settings)
        for point in points:
            self(point)

    def __call__(self, point: Point) -> None:
        """Log an evaluation."""
        self._run.log(point)

    def close(self) -> None:
        """End the run of Weights & Biases."""
        self._run.finish()
