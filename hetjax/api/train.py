"""One run: a task, data, a machine and a strategy in, a history out."""

from collections.abc import Callable
from pathlib import Path

from hetjax.api.progress import ProgressBar
from hetjax.api.requests import check_train
from hetjax.api.session import Session
from hetjax.data.dataset import Dataset
from hetjax.engine.records.history import History
from hetjax.machine import Machine
from hetjax.runtimes.threads.machine import RealMachine
from hetjax.strategies.types import Strategy
from hetjax.task.types import Task


def train(
    task: Task,
    data: Dataset,
    machine: Machine | RealMachine,
    strategy: Strategy,
    *,
    seconds: float,
    seed: int = 0,
    num_evals: int = 50,
    target: float | None = None,
    epochs: float | None = None,
    on_eval: Callable[[dict[str, float]], object] | None = None,
    on_error: str = "raise",
    on_nan: str | None = None,
    on_lost_worker: str = "continue",
    trace: str | Path | None = None,
    progress: bool = True,
) -> History:
    """Train one model with one strategy for `seconds` of the machine's clock.

    `machine` is simulated (`machine.preset`, a file) or real (`local_machine`): then
    the seconds are real ones, workers compute in threads of their own, and a dry run
    predicts the shapes that the run will need, which are compiled before the clock
    starts.

    The test split is evaluated at the start and at `num_evals` instants, evenly spaced
    (never charged to the clock); `on_eval` is called with each: {"seconds",
    "updates", "examples", "loss", metrics...}. `target` ends the run once the main
    metric reaches it, `epochs` once so many passes over the training data are done, at
    the first evaluation that finds it so. Ctrl-C ends it too; what was measured is
    returned. `seed` sets the initial parameters, the order of the examples and the
    machine's noise. What `on_eval` raises ends the run as Ctrl-C does; it is raised
    with the history as its attribute `history` (on_error="raise"), or kept in
    `history.error` and told in `history.stopped` ("keep").

    A replica that is not finite any more stops the run (on_nan="stop", the default on
    simulated machines), or it is kept out of the merge, counted, and reset to the
    centre ("reset", the default on real ones). When a worker is lost the run goes on
    without it (on_lost_worker="continue") or stops ("stop").

    A real run is recorded, in the file `trace` or one of its own: `history.trace`,
    which `replay` runs again.

    The history holds the evaluations, each worker's time, and the final model:
    `params`, `model_state`, and `model`, the user's own module with both put back.
    Errors: ValueError, which names the argument, for a request that cannot be met,
    before anything is compiled.
    """
    check_train(
        task,
        data,
        machine,
        strategy,
        seconds=seconds,
        seed=seed,
        num_evals=num_evals,
        target=target,
        epochs=epochs,
        on_eval=on_eval,
        on_error=on_error,
        on_nan=on_nan,
        on_lost_worker=on_lost_worker,
        trace=trace,
    )
    session = Session(
        task,
        data,
        machine,
        seconds=seconds,
        num_evals=num_evals,
        on_nan=on_nan,
        on_lost_worker=on_lost_worker,
        trace=trace,
    )
    bar = ProgressBar(seconds, shown=progress, real=session.real)
    try:
        history = session.run(
            strategy.name,
            strategy,
            seed,
            bar,
            target=target,
            epochs=epochs,
            on_eval=on_eval,
        )
    finally:
        bar.close()
    if history.error is not None and on_error == "raise":
        history.error.history = history  # pyright: ignore[reportAttributeAccessIssue]
        history.error.add_note("what was measured by then is this error's `history`")
        raise history.error
    return history
