"""A comparison as one HTML page that needs nothing else: no network, no script.

The same comparison gives the same bytes.
"""

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from hetjax.engine.records.history import BY_REQUEST, EPOCHS_DONE, REFERENCE, History
from hetjax.metric_mode import best_of
from hetjax.report.page.html_parts import (
    bullets,
    html_table,
    listed,
    number,
    pairs,
    paragraph,
    section,
    setting,
)
from hetjax.report.page.machine_section import machine_html
from hetjax.report.page.run_sections import events_html, workers_html
from hetjax.report.page.style import PAGE, STYLE
from hetjax.report.record import batch_sizes_changed, plain
from hetjax.report.runs import first_seeds
from hetjax.report.summary_table import end_texts, seconds_texts
from hetjax.report.tuning import remarks
from hetjax.report.types import ComparisonLike


def page(comparison: ComparisonLike, command: str = "") -> str:
    """Return the page's HTML; `command` made the comparison, if known."""
    c = comparison
    machine = plain(c.machine)
    body = (
        _question(c, machine),
        section("Results", f'<div class="wide">{c.table()._repr_html_()}</div>'),
        section("Curves", _curves(c)),
        section("Batch sizes", _batch_sizes(c)),
        section("Where the workers' time went", workers_html(c)),
        section("Events", events_html(c.histories)),
        section("Settings of the strategies", _settings(c.histories)),
        section("How learning rates were chosen", _tuning(c)),
        section("Machine", machine_html(machine, c.histories)),
        section("How to reproduce it", reproduce_html(c, machine, command)),
    )
    title = escape(_title(c, machine))
    return PAGE.substitute(title=title, style=STYLE, body="\n".join(filter(None, body)))


def _title(c: ComparisonLike, machine: dict[str, Any]) -> str:
    count = len(c.strategies)
    strategies = f"{count} strategies" if count > 1 else c.strategies[0]
    on = f", machine {machine['name']}" if "name" in machine else ""
    return f"{strategies} on {c.data.get('name', 'one data set')}{on}"


def _question(c: ComparisonLike, machine: dict[str, Any]) -> str:
    """The setting of the comparison, and the shortest answer."""
    seeds = sorted({h.seed for h in c.histories})
    workers = machine.get("workers", "")
    count = len(workers) if isinstance(workers, list) else workers
    kind = "real" if c.unit == "seconds" else "simulated"
    better = "larger" if c.mode == "max" else "smaller"
    target = f"{c.target:g} {c.metric}"
    if not math.isfinite(c.target):
        target = "none: no strategy ended better than at the start"
    elif c.target_is_default:
        target += ", from the best final median of any strategy"
    rows = [
        ("strategies", ", ".join(c.strategies)),
        ("data", _data(c.data)),
        ("machine", f"{machine.get('name', '')} ({count} {kind} workers)".strip()),
        ("budget", _budget(c)),
        ("seeds", ", ".join(map(str, seeds))),
        ("metric", f"{c.metric}: {better} is better"),
        ("target", target),
        *_answers(c),
    ]
    return pairs(rows)


def _budget(c: ComparisonLike) -> str:
    if c.budget is not None:
        return f"{number(c.budget)} {c.unit} per run"
    longest = max(h.duration for h in c.histories)
    return f"all runs ended early, after at most {number(longest)} {c.unit}"


def _data(data: dict[str, Any]) -> str:
    """The name of a data set, and its sizes."""
    named = (
        ("train_examples", "training examples"),
        ("test_examples", "test examples"),
        ("features", "features"),
        ("classes", "classes"),
    )
    total = {key: _total(data.get(key)) for key, _ in named}
    texts = [f"{total[key]:,} {what}" for key, what in named if total[key]]
    texts += [kind for kind in ("sparse", "multilabel") if data.get(kind)]
    texts += [str(note) for note in data.get("notes", ())]
    name = str(data.get("name", ""))
    return f"{name}: {', '.join(texts)}" if texts else name


def _total(numbers: Any) -> int:
    """The sum of a number, or of those of several arrays."""
    if isinstance(numbers, dict):
        return sum(map(_total, numbers.values()))
    if isinstance(numbers, list | tuple):
        return sum(map(_total, numbers))
    return numbers or 0


def _answers(c: ComparisonLike) -> list[tuple[str, str]]:
    """The strategies with the best final median, and the first ones at the target."""
    rows = c.summary()
    finals = [row["final"] for row in rows]
    best = best_of(finals, c.mode)
    answers = []
    if best == best:
        names = [row["strategy"] for row in rows if row["final"] == best]
        text = end_texts(rows, "final")[finals.index(best)]
        answers.append((f"best final {c.metric}", f"{listed(names)}: {text}"))
    times = [row["seconds_to_target"] for row in rows]
    known = [t for t in times if t is not None]
    if known:
        first = min(known)
        names = [r["strategy"] for r, t in zip(rows, times, strict=True) if t == first]
        text = seconds_texts(rows)[times.index(first)]
        answers.append(("first at the target", f"{listed(names)}: {text} {c.unit}"))
    return answers


def _curves(c: ComparisonLike) -> str:
    """The main metric over time, and over examples."""
    from hetjax.report.drawing.panels import figure_html

    time = "time" if c.unit == "seconds" else "virtual time"
    return figure_html(c.plot(), f"{c.metric} over {time}") + figure_html(
        c.plot("examples"), f"{c.metric} over the examples that all workers processed"
    )


def _batch_sizes(c: ComparisonLike) -> str:
    """Batch sizes over the merges; empty if they did not change."""
    if not any(map(batch_sizes_changed, first_seeds(c.histories))):
        return ""
    from hetjax.report.drawing.panels import figure_html

    return figure_html(c.plot_batch_sizes(), "every worker's batch size, first seeds")


def _settings(histories: Sequence[History]) -> str:
    """All settings of every strategy."""
    rows = [
        (
            h.strategy,
            ", ".join(f"{k}={setting(v)}" for k, v in plain(h.settings).items()),
        )
        for h in first_seeds(histories)
    ]
    return html_table(("strategy", "settings"), rows, ("name", "code"))


def _tuning(c: ComparisonLike) -> str:
    """The scores of the learning rates that were tried; empty if none were."""
    if c.tuning is None:
        return ""
    tuning = plain(c.tuning)
    scores = tuning["scores"]
    rates = list(dict.fromkeys(rate for found in scores.values() for rate in found))
    rates.sort(key=float)
    rows = [
        (
            name,
            *(_score(found.get(rate, "")) for rate in rates),
            str(tuning["chosen"].get(name, "")),
        )
        for name, found in scores.items()
    ]
    kinds = ("name", *("number" for _ in rates), "number")
    whose = "one for all" if tuning["tune"] == "common" else "each strategy its own"
    score = tuning.get("score", "best")  # missing in earlier versions
    caption = (
        f"{score.capitalize()} {c.metric} at each learning rate, on "
        f"{tuning['held_out']:,} held-out training examples; {whose}."
    )
    table = html_table(("strategy", *rates, "chosen"), rows, kinds, caption)
    lines = remarks(tuning)
    return table + (bullets(lines) if lines else "")


def _score(value: float | str | None) -> str:
    """A score of a learning rate; None in JSON data means that it diverged."""
    if value is None:
        return "diverged"
    return value if isinstance(value, str) else f"{value:.4g}"


def reproduce_html(c: ComparisonLike, machine: dict[str, Any], command: str) -> str:
    """The command or the call that repeats the runs, and the versions."""
    text = command or f"hetjax.compare({', '.join(_arguments(c))})"
    if not command and "call" in machine:
        text = f"machine = {machine['call']}\n{text}"
    advice = "" if command else "Use your own task; strategies' settings are above. "
    same = (
        "Timings of real devices vary: the numbers will differ."
        if c.unit == "seconds"
        else "On the same platform, these versions give the same numbers to the bit."
    )
    return (
        f"<pre><code>{escape(text)}</code></pre>"
        + pairs(c.versions.items())
        + paragraph(advice + same, "quiet")
    )


def _arguments(c: ComparisonLike) -> list[str]:
    """The arguments of `hetjax.compare`, as far as they are known from the runs."""
    longest = {
        name: max(h.duration for h in c.histories if h.strategy == name)
        for name in c.strategies
    }
    alike = len(set(longest.values())) == 1 or any(h.stopped for h in c.histories)
    found: dict[str, Any] = {
        "seconds": max(longest.values()) if alike else longest,
        "seeds": tuple(sorted({h.seed for h in c.histories})),
        "num_evals": max(len(h.evals) for h in c.histories) - 1,
    }
    parts = sorted({h.eval_examples for h in c.histories})
    if len(parts) == 1 and parts[0]:
        found["eval_examples"] = parts[0]
    ends = re.findall(rf"([\d.e+-]+) {EPOCHS_DONE}$", c.histories[0].stopped)
    if ends:
        found["epochs"] = float(ends[0])
    if not c.target_is_default:
        found["target"] = c.target
    if c.tuning is not None:
        rates = [float(r) for tried in c.tuning["scores"].values() for r in tried]
        found["learning_rates"] = tuple(dict.fromkeys(rates))
        found["tune"] = c.tuning["tune"]
    schedules = {h.schedule_seed for h in c.histories}
    own = any(h.schedule_seed not in (None, h.seed) for h in c.histories)
    if own and len(schedules) == 1:
        (found["schedule_seed"],) = schedules
    if {h.played for h in c.histories} == {REFERENCE + BY_REQUEST}:
        found["compiled"] = False
    given = (f"{name}={value!r}" for name, value in found.items())
    return ["task", "data", "machine", "strategies", *given]
