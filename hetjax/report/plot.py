"""Pictures of single runs: who computed, moved, merged and waited when."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hetjax.engine.records.history import History
from hetjax.report import plots


def timeline(
    history: History | Sequence[History],
    *,
    workers: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
) -> Figure:
    """A Gantt chart: busy, transfer, merging and waiting of every worker.

    Beside it each worker's shares of the whole run. `workers` are numbers, `window` is
    (start, finish) in seconds; without it the end of the run that holds about 40
    segments per worker. Several histories stand one below the other.
    """
    histories = [history] if isinstance(history, History) else list(history)
    return plots.timeline(histories, workers, window, every=True)


def chrome_trace(history: History, path: str | Path) -> None:
    """The timeline as a file for Perfetto (ui.perfetto.dev) or chrome://tracing.

    A row per worker; lost, joined and NaN workers are marks in theirs.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(_events(history)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def _events(history: History) -> Iterator[dict[str, Any]]:
    """Times in microseconds, as the format wants them."""
    run = {"name": f"{history.strategy}, seed {history.seed}"}
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": run}
    names = [w.name for w in history.workers]
    for k, name in enumerate(names):
        about = {"name": name}
        yield {"ph": "M", "pid": 0, "tid": k, "name": "thread_name", "args": about}
    for segment in history.timeline:
        yield {
            "ph": "X",
            "pid": 0,
            "tid": segment.worker,
            "name": segment.kind,
            "cat": segment.kind,
            "ts": 1e6 * segment.start,
            "dur": 1e6 * (segment.finish - segment.start),
        }
    for happening in history.events:
        yield {
            "ph": "i",
            "s": "t",
            "pid": 0,
            "tid": names.index(happening.worker),
            "name": happening.what,
            "ts": 1e6 * happening.seconds,
            "args": {"why": happening.why},
        }
