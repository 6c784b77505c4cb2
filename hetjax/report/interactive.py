"""Interactive plots of a page, drawn by Bokeh in the reader's browser.

Their data are in the page; so that it stays small, long curves are thinned, and long
timelines are summed over parts of the run. The plots say so.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    CustomJSHover,
    FixedTicker,
    HoverTool,
    Legend,
    LegendItem,
    NumeralTickFormatter,
    Range1d,
    Span,
)
from bokeh.palettes import Viridis256, linear_palette
from bokeh.plotting import figure
from bokeh.resources import Resources

from hetjax.engine.records.history import History
from hetjax.engine.records.timeline import Timeline
from hetjax.report.plot_data import (
    KINDS,
    curves_of,
    last_length,
    over_seeds,
    segments,
    sizes_over_merges,
    spread_workers,
    value_range,
    x_label,
    y_label,
)
from hetjax.report.record import COMMON

POINTS = 1_000  # of a curve, at most
SEGMENTS = 60_000  # of all timelines of a page, at most
ROWS = 24  # workers of a timeline, at most
DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashdot"}
Columns = dict[str, Any]  # arrays of one length, by name
MARKS = {"lost": "x", "left": "inverted_triangle", "joined": "triangle"}


def library() -> str:
    """The text of BokehJS, with its licence at the beginning."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def as_json(plots: dict[str, Any]) -> str:
    """Plots by the id of their place on the page, for `Bokeh.embed.embed_item`.

    Bokeh numbers its objects by process; here they are numbered by page, so that the
    same comparison gives the same bytes. The text has no "<", which could end a script,
    and no "$$", for which Bokeh would fetch a renderer of formulas from the network.
    """
    text = json.dumps({place: json_item(plot) for place, plot in plots.items()})
    numbers: dict[str, int] = {}
    return re.sub(
        r'("(?:root_)?id": "p)(\d{4,}")',
        lambda found: f'{found[1]}{numbers.setdefault(found[2], len(numbers))}"',
        text.replace("<", "\\u003c").replace("$$", "$\\u200b$"),
    )


def curves(histories: Sequence[History], x: str, target: float) -> tuple[Any, str]:
    """The main metric over `x`: medians and bands over the seeds; and a note on them.

    A strategy is switched off and on in the legend.
    """
    metric, shown = histories[0].metric, value_range(histories, target)
    plot = _empty(
        "pan,box_zoom,wheel_zoom,reset,save",
        height=400,
        x_axis_label=x_label(histories, x),
        y_axis_label=y_label(histories),
        y_axis_type="log" if shown.logarithmic else "linear",
    )
    for side, limit in {"start": shown.low, "end": shown.high}.items():
        if limit is not None:
            setattr(plot.y_range, side, limit)
    entries: dict[str, list[Any]] = {}
    found = curves_of(histories, metric, x)
    for c in found:
        runs = [h for h in histories if h.strategy == c.name]
        some = _thinned(len(c.points))
        columns = _columns(runs, x) | {"low": c.values.min(0), "high": c.values.max(0)}
        columns |= {"x": c.points, "y": c.median}
        source = ColumnDataSource({name: v[some] for name, v in columns.items()})
        style = {"source": source, "color": c.color, "name": c.name}
        drawn = [plot.line("x", "y", line_width=2, line_dash=DASHES[c.dash], **style)]
        hover = [("strategy", "$name"), (metric, "@y{0.0000}")]
        if len(runs) > 1:
            drawn.append(plot.varea("x", "low", "high", fill_alpha=0.12, **style))
            hover.append(("lowest, highest", "@low{0.0000}, @high{0.0000}"))
        hover += [(n, f"@{n}{_digits(n)}") for n in (*COMMON, "merges") if n in columns]
        _hover(plot, drawn[0], hover, line_policy="nearest")
        entries[f"{c.name} {c.note}".strip()] = drawn
    if np.isfinite(target):
        plot.add_layout(Span(location=target, line_dash="dashed", line_color="#666666"))
    _legend(plot, entries)
    notes = []
    if len(histories) > len(found):
        notes.append("Medians over seeds, bands from lowest to highest.")
    if max(len(c.points) for c in found) > POINTS:
        notes.append(f"Longer curves are thinned to {POINTS:,} points.")
    return plot, " ".join(notes)


def _columns(runs: Sequence[History], x: str) -> dict[str, np.ndarray]:
    """The medians of other columns of the evaluations that all runs have."""
    names = (*COMMON, "merges")
    known = [n for n in names if all(n in p for h in runs for p in h.evals)]
    return {n: np.median(over_seeds(runs, n, x)[1], axis=0) for n in known}


def batch_sizes(history: History) -> tuple[Any, str]:
    """Workers' batch sizes over the merges; and a note if some are not shown."""
    every = sizes_over_merges(history)
    lines = every[:: math.ceil(len(every) / ROWS)]
    colors = linear_palette(Viridis256[:230], len(lines))  # not as light as the paper
    plot = _empty(
        "pan,box_zoom,wheel_zoom,reset,save",
        height=280,
        x_axis_label="mega-batches merged",
        y_axis_label="batch size [examples]",
    )
    plot.y_range.start = 0
    entries: dict[str, list[Any]] = {}
    for (name, merges, sizes), color in zip(lines, colors, strict=True):
        some = _thinned(len(merges))
        source = ColumnDataSource({"x": merges[some], "y": sizes[some]})
        style = {"source": source, "color": color, "name": name}
        drawn = plot.step("x", "y", mode="after", line_width=2, **style)
        hover = [("worker", "$name"), ("merges", "@x"), ("batch size", "@y{0,0.[0]}")]
        _hover(plot, drawn, hover)
        entries[name] = [drawn]
    _legend(plot, entries)
    return plot, _some_workers(len(lines), len(every))


def _some_workers(shown: int, count: int) -> str:
    return f"{shown} of {count:,} workers are shown. " if shown < count else ""


def timelines(histories: Sequence[History]) -> Iterator[tuple[Any, str]]:
    """A timeline of every run, and a note on what it does not show."""
    total = sum(len(h.timeline) for h in histories)
    most = SEGMENTS if total <= SEGMENTS else SEGMENTS // len(histories)
    for history in histories:
        rows = spread_workers(history, ROWS)
        table = segments(history)
        table = table[np.isin(table[:, 0], rows)]
        note = _some_workers(len(rows), len(history.workers))
        if len(table) <= most:
            bars = _bars(table, rows)
        else:
            kinds = len(np.unique(table[:, 1]))
            parts = max(1, most // (kinds * len(rows)))
            bars = _summed(table, rows, np.linspace(0.0, history.duration, parts + 1))
            note += (
                f"{len(table):,} segments are too many for a page: each bar is the sum "
                f"of one kind of time in 1/{parts:,} of the run."
            )
        yield _timeline(history, rows, bars, whole=len(table) > most), note


def _timeline(
    history: History, rows: Sequence[int], bars: Iterator[Columns], whole: bool
) -> Any:
    """A row of bars for each of these workers; at first the `whole` run, or its end."""
    names = [history.workers[k].name for k in rows]
    end = history.duration or 1.0
    start = 0.0 if whole else max(0.0, end - last_length(history))
    plot = _empty(
        "xpan,xbox_zoom,xwheel_zoom,reset",
        height=92 + 22 * len(rows),
        x_axis_label=x_label([history]),
        x_range=Range1d(
            start=start, end=end, bounds=(0, end), reset_start=0, reset_end=end
        ),
        y_range=Range1d(start=len(rows) - 0.4, end=-0.6),
    )
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    plot.yaxis.major_label_overrides = dict(enumerate(names))
    plot.ygrid.visible = False
    used = [i for i, k in enumerate(rows) if history.workers[k].idle < end]
    style = {"fill_color": KINDS["waiting"], "line_color": None, "name": "waiting"}
    waiting = plot.hbar(y=used, left=0, right=end, height=0.76, **style)
    worker = CustomJSHover(args={"names": names}, code="return names[value]")
    entries: dict[str, list[Any]] = {}
    for kind, columns in zip(history.timeline.kinds, bars, strict=True):
        if not len(columns["row"]):
            continue
        if kind == "busy":
            columns |= _about_rounds(history, rows, columns)
        edge = "white" if kind == "busy" and not whole else None  # between rounds
        source = ColumnDataSource(columns)
        places = {"y": "row", "left": "start", "right": "finish", "source": source}
        style = {"fill_color": KINDS[kind], "line_color": edge, "name": kind}
        drawn = plot.hbar(**places, height=0.76, **style)
        begin, finish = ("from", "to") if whole else ("start", "finish")
        time = f"@{begin}{{0.[000000]}} to @{finish}{{0.[000000]}} s"
        lines = [("kind", "$name"), ("worker", "@row{custom}"), ("time", time)]
        lines += [(n, f"@{{{n}}}{_digits(n)}") for n in columns if n not in _PLACES]
        _hover(plot, drawn, lines, formatters={"@row": worker})
        entries[kind] = [drawn]
    _draw_events(plot, history, names)
    _legend(plot, entries | {"waiting": [waiting]})
    return plot


_PLACES = ("row", "start", "finish", "from", "to")  # columns that are no hover lines


def _bars(table: np.ndarray, rows: Sequence[int]) -> Iterator[Columns]:
    """The bars of each kind, one per segment; those of rounds are numbered."""
    for kind in range(len(Timeline.kinds)):
        mine = table[table[:, 1] == kind]
        mine = mine[np.lexsort((mine[:, 2], mine[:, 0]))]
        row = np.searchsorted(rows, mine[:, 0])
        columns = {"row": row, "start": mine[:, 2], "finish": mine[:, 3]}
        if kind == 0:
            columns["round"] = 1 + np.arange(len(row)) - np.searchsorted(row, row)
        yield columns


def _summed(
    table: np.ndarray, rows: Sequence[int], edges: np.ndarray
) -> Iterator[Columns]:
    """The bars of each kind, one per worker and part of the run between two `edges`.

    In each part, the kinds are one after the other.
    """
    begin, to = (np.tile(side, len(rows)) for side in (edges[:-1], edges[1:]))
    row = np.repeat(np.arange(len(rows)), len(edges) - 1)
    start = begin
    for kind in range(len(Timeline.kinds)):
        seconds, counts = [], []
        for k in rows:
            mine = table[(table[:, 0] == k) & (table[:, 1] == kind), 2:]
            mine = mine[np.argsort(mine[:, 0])]
            # the seconds of this kind until the start and the end of each segment
            done = np.repeat(np.cumsum(np.append(0.0, np.diff(mine))), 2)[1:-1]
            until = np.interp(edges, mine.ravel(), done) if len(mine) else 0 * edges
            seconds.append(np.diff(until))
            counts.append(np.histogram(mine[:, 0], edges)[0])
        length = np.concatenate(seconds)
        columns = {"row": row, "start": start, "finish": start + length}
        columns |= {"from": begin, "to": to, "seconds": length}
        columns["segments" if kind else "rounds"] = np.concatenate(counts)
        yield {name: values[length > 0] for name, values in columns.items()}
        start = start + length


def _about_rounds(history: History, rows: Sequence[int], bars: Columns) -> Columns:
    """The batch size at the start of each bar, and the last loss before its end."""
    found = {}
    sizes = np.full(len(bars["row"]), np.nan)
    for i, k in enumerate(rows):
        if changes := history.workers[k].batch_size_over_time:
            times, values = np.transpose(changes)
            mine = bars["row"] == i
            last = np.searchsorted(times, bars["start"][mine], side="right") - 1
            sizes[mine] = values[np.maximum(last, 0)]
    if np.isfinite(sizes).any():
        found["batch size"] = sizes
    if history.evals:
        times, losses = np.transpose([(p["seconds"], p["loss"]) for p in history.evals])
        last = np.searchsorted(times, bars["finish"], side="right") - 1
        found["last test loss"] = losses[np.maximum(last, 0)]
    return found


def _draw_events(plot: Any, history: History, names: Sequence[str]) -> None:
    """Mark when workers were lost, left or joined, with the reason."""
    events = [e for e in history.events if e.what in MARKS and e.worker in names]
    if not events:
        return
    columns = {
        "x": np.array([e.seconds for e in events]),
        "row": np.array([names.index(e.worker) for e in events]),
        "marker": [MARKS[e.what] for e in events],
        "what": [f"{e.worker} {e.what}: {e.why}" for e in events],
    }
    style = {"size": 11, "fill_color": "#C0392B", "line_color": "#7B1E12"}
    drawn = plot.scatter(
        "x", "row", marker="marker", source=ColumnDataSource(columns), **style
    )
    _hover(plot, drawn, [("", "@what"), ("time", "@x s")])


def _empty(tools: str, **options: Any) -> Any:
    """A plot without content, whose axes are zoomed by dragging."""
    plot = figure(
        sizing_mode="stretch_width",
        toolbar_location="above",
        tools=tools,
        active_drag=tools.split(",")[1],
        active_scroll=None,  # the page scrolls
        **options,
    )
    plot.toolbar.logo = None
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[000000]")
    plot.outline_line_color = None
    plot.grid.grid_line_color = "#e6e6e6"
    return plot


def _legend(plot: Any, entries: dict[str, list[Any]]) -> None:
    """A legend below the plot; a click switches what an entry stands for off or on."""
    columns = max(1, min(len(entries), 115 // (max(map(len, entries)) + 6)))
    plot.height += 23 * math.ceil(len(entries) / columns)
    items = [LegendItem(label=k, renderers=drawn) for k, drawn in entries.items()]
    legend = Legend(items=items, ncols=columns, click_policy="hide", location="left")
    legend.update(border_line_color=None, margin=0, label_text_font_size="12px")
    plot.add_layout(legend, "below")


def _hover(plot: Any, drawn: Any, lines: list[tuple[str, str]], **options: Any) -> None:
    """Show these lines next to what the pointer is at."""
    hover = HoverTool(renderers=[drawn], tooltips=lines, visible=False, **options)
    plot.add_tools(hover)


def _thinned(count: int) -> np.ndarray:
    """The indices of at most `POINTS` points, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))


def _digits(column: str) -> str:
    """The format of a column's numbers."""
    return (
        "{0,0}"
        if column in ("round", "rounds", "updates", "examples")
        else "{0,0.[0000]}"
    )
