"""Callbacks for `train(on_eval=...)`: they see every evaluation, and may stop a run.

A callback is a function of an evaluation {"seconds", "updates", "examples", "loss",
metrics...}; the run ends if it returns `STOP`. An exception in it ends the run and
keeps the history. Several are given as a list. Of an object that can be called,
`begin(points)` is called when a run begins, with the evaluations that it made before it
was continued, and `close()` when it ends: one object serves several runs in turn.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hetjax.atomic_files import naming
from hetjax.metric_mode import MODES, better

Point = dict[str, float]
OnEval = Callable[[Point], object]


_COUNTS = ("seconds", "updates", "examples")  # of an evaluation; the rest is measured


class Stop(NamedTuple):
    """What a callback returns to end the run; `why` is told in the history."""

    why: str = "on_eval returned STOP"


STOP: Final = Stop()


class Callbacks:
    """Several callbacks of one run, as one."""

    def __init__(
        self, on_eval: OnEval | Sequence[OnEval] | None, *, writes: bool = True
    ):
        """Leave out those that write files or send numbers, unless it `writes`."""
        given = [] if on_eval is None else on_eval
        every: list[Any] = [given] if callable(given) else list(given)
        self._all = [c for c in every if writes or not getattr(c, "writes", False)]

    def begin(self, points: Sequence[Point]) -> None:
        """Tell all that a run begins, or goes on after these evaluations."""
        for callback in self._all:
            if hasattr(callback, "begin"):
                callback.begin(points)

    def __call__(self, point: Point) -> str:
        """Show all an evaluation; return why the run is to end, or "".

        The first exception is raised when all have seen it.
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
        """Tell all that the run has ended; return the first exception."""
        first = None
        for callback in self._all:
            try:
                if hasattr(callback, "close"):
                    callback.close()
            except Exception as error:
                first = first or error
        return first


class EarlyStopping:
    """Stops a run whose metric has not become better for `patience` evaluations.

    Evaluations before the model has changed, at the run's first merge, do not count.

    >>> stopping = EarlyStopping("loss", mode="min", patience=1)
    >>> [bool(stopping({"loss": loss})) for loss in (1.0, 0.5, 0.6)]
    [False, False, True]
    """

    def __init__(
        self, metric: str, *, mode: str, patience: int = 10, min_delta: float = 0.0
    ):
        """A better value counts only if it is better by more than `min_delta`."""
        if mode not in MODES:
            raise ValueError(f"mode={mode!r}: choose one of {MODES}")
        if patience < 1 or min_delta < 0:
            raise ValueError("patience must be at least 1, and min_delta at least 0")
        self._metric, self._mode, self._patience = metric, mode, patience
        self._least = min_delta if mode == "max" else -min_delta
        self.begin([])

    def begin(self, points: Sequence[Point]) -> None:
        """Forget another run; look at the evaluations of this one so far."""
        self._best, self._since = float("nan"), 0
        self._untrained: Point | None = None  # the first evaluation, until another
        for point in points:
            self(point)

    def __call__(self, point: Point) -> Stop | None:
        """Look at an evaluation."""
        if self._metric not in point:
            raise ValueError(
                f"EarlyStopping: there is no {self._metric!r} in an evaluation; there "
                f"are {', '.join(point)}"
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
            f"{self._metric} has not become better than {self._best:.6g} for "
            f"{self._since} evaluations"
        )


class CSV:
    """Writes a line per evaluation to a file, at once; what was there is replaced."""

    writes = True

    def __init__(self, path: str | Path):
        """The file's folder must exist."""
        self._path = Path(path)

    def begin(self, points: Sequence[Point]) -> None:
        """Open the file; write the evaluations of the run so far."""
        # it is open for as long as the run takes
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

    def __init__(self, folder: str | Path, *, x: str = "updates"):
        """`x` is the step of a scalar: "updates" or "examples"."""
        try:
            import tensorboardX  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "hj.callbacks.TensorBoard needs tensorboardX: python -m pip install "
                "'hetjax[tensorboard]'"
            ) from error
        if x not in ("updates", "examples"):
            raise ValueError(f'x={x!r}: choose "updates" or "examples"')
        self._open, self._folder, self._x = tensorboardX.SummaryWriter, folder, x

    def begin(self, points: Sequence[Point]) -> None:
        """Open a file there; write the evaluations of the run so far."""
        self._writer: Any = self._open(str(self._folder))
        for point in points:
            self(point)

    def __call__(self, point: Point) -> None:
        """Write an evaluation."""
        for name, value in point.items():
            self._writer.add_scalar(name, value, int(point[self._x]))

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._writer.close()


class WandB:
    """Logs evaluations to a run of Weights & Biases.

    Needs the extra `hetjax[wandb]`. `settings` are those of `wandb.init`.
    """

    writes = True

    def __init__(self, **settings: Any):
        """Begin nothing yet; the run there begins with the run here."""
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "hj.callbacks.WandB needs wandb: python -m pip install 'hetjax[wandb]'"
            ) from error
        self._open, self._settings = wandb.init, settings

    def begin(self, points: Sequence[Point]) -> None:
        """Begin a run there; log the evaluations of the run so far."""
        self._run: Any = self._open(**self._settings)
        for point in points:
            self(point)

    def __call__(self, point: Point) -> None:
        """Log an evaluation."""
        self._run.log(point)

    def close(self) -> None:
        """End the run there."""
        self._run.finish()
