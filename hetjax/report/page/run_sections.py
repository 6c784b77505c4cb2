"""The runs of a comparison, one by one: workers' seconds, timelines, events."""

from collections.abc import Iterator, Sequence

from hetjax.engine.records.history import History
from hetjax.report.page.html_parts import (
    bullets,
    details,
    html_table,
    number,
    paragraph,
)
from hetjax.report.runs import NotStored, first_seeds
from hetjax.report.types import ComparisonLike

KINDS = ("busy", "merging", "transfer", "waiting", "idle")  # of a worker's seconds


def workers_html(comparison: ComparisonLike) -> str:
    """A foldable part for every strategy's first run: its timeline and its workers."""
    from hetjax.report.drawing.gantt import timeline
    from hetjax.report.drawing.panels import figure_html, strategy_styles

    shown = first_seeds(comparison.histories)
    styles = strategy_styles(comparison.histories)
    body = ""
    if any(isinstance(h.timeline, NotStored) for h in shown):
        body += paragraph("The runs were read from a file, which has no timelines.")
    for h in shown:
        picture = ""
        if not isinstance(h.timeline, NotStored):
            caption = f"{h.strategy}, seed {h.seed}: each worker's time"
            picture = figure_html(timeline([h], styles=styles), caption)
        body += details(f"{h.strategy}, seed {h.seed}", picture + _workers(h))
    return body


def events_html(histories: Sequence[History]) -> str:
    """Runs that were stopped or continued, and a table of worker events."""
    lines = list(_unusual(histories))
    rows = [
        (h.strategy, str(h.seed), number(e.seconds), e.worker, e.what, e.why)
        for h in histories
        for e in h.events
    ]
    body = bullets(lines) if lines else paragraph("All runs used their whole budget.")
    if not rows:
        return body + paragraph("No worker failed, left or joined.")
    header = ("strategy", "seed", "seconds", "worker", "event", "why")
    kinds = ("name", "number", "number", "name", "name", "text")
    return body + html_table(header, rows, kinds)


def _unusual(histories: Sequence[History]) -> Iterator[str]:
    """Lines about runs that ended early, were continued, or left threads behind."""
    for h in histories:
        name = f"{h.strategy}, seed {h.seed}"
        if h.collapsed:
            yield (
                f"{name}, ended far worse than its best {h.metric}: "
                f"{number(h.final())} after {number(h.best())}"
            )
        if h.stopped and not h.ended_early:
            yield f"{name}: {h.stopped}"
        elif h.stopped:
            yield f"{name}, was stopped after {number(h.duration)} s: {h.stopped}"
        for resumed in h.interruptions:
            why = f" ({resumed.why})" if resumed.why else ""
            yield (
                f"{name}, was resumed at {number(resumed.seconds)} s from its "
                f"checkpoint {resumed.checkpoint}{why}"
            )
        if h.stuck:
            yield f"{name}: the threads of {', '.join(h.stuck)} did not end"


def _workers(history: History) -> str:
    """A table of all workers, without kinds of time that no worker had."""
    workers = history.workers
    used = [kind for kind in KINDS if any(getattr(w, kind) for w in workers)]
    counts = ["updates", "examples", "padded", "lost", "nans"]
    counts = [name for name in counts if any(getattr(w, name) for w in workers)]
    words = {"padded": "padding examples", "lost": "lost rounds", "nans": "NaN rounds"}
    header = [
        "worker",
        *(f"{kind} [%]" for kind in used),
        *(words.get(name, name) for name in counts),
    ]
    length = history.duration or 1.0
    rows = [
        [
            w.name,
            *(f"{100 * getattr(w, kind) / length:.1f}" for kind in used),
            *(f"{getattr(w, name):,}" for name in counts),
        ]
        for w in workers
    ]
    kinds = ["name", *("number" for _ in header[1:])]
    return html_table(header, rows, kinds)
