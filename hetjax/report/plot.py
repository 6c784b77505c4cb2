"""Plots of single runs: the metric, and when each worker computed, merged and waited.

Plots of comparisons are methods: `Comparison.plot`, `plot_timeline`, `plot_heat_map`.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetjax.atomic_files import naming
from hetjax.engine.records.history import History
from hetjax.report.runs import check_runs, check_timelines

if TYPE_CHECKING:
    from matplotlib.figure import Figure


__all__ = ["chrome_trace", "curve", "timeline"]


def __dir__() -> list[str]:
    return __all__


def curve(
    history: History | Sequence[History], x: str = "seconds", *, smooth: int = 1
) -> "Figure":
    """Plot the main metric of a run over `x`, like `Comparison.plot`.

    x: "seconds", "examples", "updates", "merges", or "bytes" from and to all workers.
    Several histories of one strategy are seeds: their median is drawn.
    """
    from hetjax.report.drawing import curves

    histories = [history] if isinstance(history, History) else list(history)
    check_runs(histories)
    return curves.time_to_accuracy(histories, histories[0].metric, x, None, smooth)


def timeline(
    history: History | Sequence[History],
    *,
    workers: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
) -> "Figure":
    """Draw a Gantt chart: busy, transfer, merging and waiting time of every worker.

    Next to it are each worker's shares of the whole run. `workers` are the indices of
    the workers to draw. `window` is (start, finish) in seconds; by default the end of
    the run, with about 40 segments per worker. Several histories are stacked
    vertically.
    """
    from hetjax.report.drawing.gantt import timeline as draw_timeline

    histories = [history] if isinstance(history, History) else list(history)
    return draw_timeline(histories, workers, window, every=True)


def chrome_trace(history: History, path: str | Path) -> None:
    """Write the timeline as a file for Perfetto (ui.perfetto.dev) or chrome://tracing.

    There is a row per worker, and on a cluster a group of rows per node; worker events
    are marks in the worker's row.
    """
    check_timelines([history])
    with naming(path), Path(path).open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(_events(history)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def _events(history: History) -> Iterator[dict[str, Any]]:
    """Yield the trace events of the format, with times in microseconds."""
    run = f"{history.strategy}, seed {history.seed}"
    nodes = list(dict.fromkeys(w.node for w in history.workers)) or [""]
    for pid, node in enumerate(nodes):
        about = {"name": f"{run}, on {node}" if node else run}
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": about}
    rows = [
        {"pid": nodes.index(w.node), "tid": k} for k, w in enumerate(history.workers)
    ]
    by_name = dict(zip((w.name for w in history.workers), rows, strict=True))
    for name, row in by_name.items():
        yield {"ph": "M", **row, "name": "thread_name", "args": {"name": name}}
    for worker, kind, start, finish in history.timeline:
        times = {"ts": 1e6 * start, "dur": 1e6 * (finish - start)}
        yield {"ph": "X", **rows[worker], "name": kind, "cat": kind, **times}
    for seconds, worker, what, why in history.events:
        about = {"name": what, "ts": 1e6 * seconds, "args": {"why": why}}
        yield {"ph": "i", "s": "t", **by_name[worker], **about}
