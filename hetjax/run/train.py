"""One run: a task, data, a machine and a strategy in, a history out."""

from collections.abc import Callable
from pathlib import Path

from hetjax.data.dataset import Dataset
from hetjax.machine import Machine
from hetjax.report.history import History
from hetjax.run.bench import Bench
from hetjax.run.local import LocalMachine
from hetjax.run.progress import Progress
from hetjax.strategies.types import Strategy
from hetjax.task.types import Task


def train(
    task: Task,
    data: Dataset,
    machine: Machine | LocalMachine,
    strategy: Strategy,
    *,
    seconds: float,
    seed: int = 0,
    points: int = 50,
    stop_at: float | None = None,
    epochs: float | None = None,
    on_point: Callable[[dict[str, float]], object] | None = None,
    on_nan: str | None = None,
    on_loss: str = "go_on",
    trace: str | Path | None = None,
    progress: bool = True,
) -> History:
    """Train one model with one strategy for `seconds` of the machine's clock.

    `machine` is simulated (`machine.preset`, a file) or real (`local_machine`): then
    the seconds are real ones, workers compute in threads of their own, and what a
    rehearsal foresees is compiled before the clock starts.

    The test split is evaluated at the start and at `points` instants, evenly spaced
    (never charged to the clock); `on_point` is called with each: {"seconds",
    "updates", "examples", "loss", metrics...}. `stop_at` ends the run once the main
    metric reaches it, `epochs` once so many passes over the training data are done, at
    the first evaluation that finds it so. Ctrl-C ends it too; what was measured is
    returned. `seed` sets the initial parameters, the order of the examples and the
    machine's noise.

    A replica that is not finite any more stops the run (on_nan="stop", the default on
    simulated machines), or is kept out of the merge, counted, and begins anew from the
    centre ("restart", the default on real ones). When a worker is lost the run goes on
    without it (on_loss="go_on") or stops ("stop").

    A real run is recorded, in the file `trace` or one of its own: `history.trace`,
    which `replay` runs again.

    The history holds the points, each worker's time, and the final model: `params`,
    `model_state`, and `model`, the user's own module with both put back.
    Errors: ValueError for a request that cannot be meant, before anything is compiled.
    """
    bench = Bench(
        task,
        data,
        machine,
        seconds=seconds,
        points=points,
        on_nan=on_nan,
        on_loss=on_loss,
        trace=trace,
    )
    bar = Progress(seconds, shown=progress, real=bench.real)
    try:
        return bench.run(
            strategy.name,
            strategy,
            seed,
            bar,
            stop_at=stop_at,
            epochs=epochs,
            on_point=on_point,
        )
    finally:
        bar.close()
