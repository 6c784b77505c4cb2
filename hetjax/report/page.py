"""A comparison as one HTML page that needs nothing else, and no network.

The text around the numbers is in templates/page.html. The same comparison gives the
same bytes.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from hetjax.engine.records.history import BY_REQUEST, EPOCHS_DONE, REFERENCE, History
from hetjax.metric_mode import best_of
from hetjax.report import interactive
from hetjax.report.plot_data import KINDS, curves_of
from hetjax.report.record import batch_sizes_changed, plain
from hetjax.report.runs import NotStored, first_seeds
from hetjax.report.summary import by_player, end_texts, seconds_texts
from hetjax.report.table import listed, number, template
from hetjax.report.tuning import remarks

NOTHING = (None, "", [], {}, False)  # values that are not shown


def page(c: Any, command: str = "") -> str:
    """The HTML of a `Comparison`; `command` made it, if known."""
    machine, shown = plain(c.machine), first_seeds(c.histories)
    plots: dict[str, Any] = {}

    def figure(plot: Any, caption: str, note: str = "") -> dict[str, str]:
        name = f"plot{len(plots)}"
        plots[name] = plot
        return {"id": name, "caption": caption, "note": note}

    time = "time" if c.unit == "seconds" else "virtual time"
    over = {"seconds": time, "examples": "the examples that all workers processed"}
    target = c.target if math.isfinite(c.target) else math.nan
    curves = []
    for x, what in over.items():
        plot, note = interactive.curves(c.histories, x, target)
        curves.append(figure(plot, f"{c.metric} over {what}", note))
    batch_sizes = []
    for h in filter(batch_sizes_changed, shown):
        plot, note = interactive.batch_sizes(h)
        batch_sizes.append(figure(plot, f"{h.strategy}: workers' batch sizes", note))
    timelines = []
    if not any(isinstance(h.timeline, NotStored) for h in shown):
        for h, (plot, note) in zip(shown, interactive.timelines(shown), strict=True):
            caption = f"{h.strategy}, seed {h.seed}: each worker's time"
            timelines.append(figure(plot, caption, note))
    rows = c.summary()
    best = best_of([row["final"] for row in rows], c.mode)
    times = [row["seconds_to_target"] for row in rows]
    first = min((t for t in times if t is not None), default=None)
    compiling = sum(h.compile_seconds for h in c.histories)
    return template("page.html").render(
        c=c,
        machine=machine,
        shown=shown,
        target=target,
        data=_data(c.data),
        parameters=[f"{n:,}" for n in sorted({h.parameters for h in shown} - {0})],
        wall_seconds=compiling + sum(h.host_seconds for h in c.histories),
        compile_seconds=compiling,
        best=_winners(rows, "final", best, end_texts(rows, "final")),
        first=_winners(rows, "seconds_to_target", first, seconds_texts(rows)),
        results=vars(c.table()),
        curves=curves,
        values=_values(c),
        batch_sizes=batch_sizes,
        timelines=timelines,
        workers=list(map(_workers, shown)),
        events=_events(c.histories),
        strategies=_strategies(shown),
        tuning=c.tuning and _tuning(plain(c.tuning), c.metric),
        remarks=remarks(plain(c.tuning)) if c.tuning else [],
        about_machine=_about_machine(machine, c.histories),
        machine_tables=list(_machine_tables(machine)),
        call=command or _call(c, machine),
        command=command,
        commands=() if command else {h.command: 0 for h in c.histories if h.command},
        library=Markup(interactive.library()),
        plots=Markup(interactive.as_json(plots)),
    )


def _winners(
    rows: list[dict[str, Any]], name: str, best: float | None, texts: list[str]
) -> str:
    """The strategies with this value, and its text; empty without any."""
    at = [i for i, row in enumerate(rows) if row[name] == best is not None]
    return f"{listed([rows[i]['strategy'] for i in at])}: {texts[at[0]]}" if at else ""


def _data(data: dict[str, Any]) -> str:
    """The name of a data set, and its sizes."""
    named = {
        "train_examples": "training examples",
        "test_examples": "test examples",
        "features": "features",
        "classes": "classes",
    }
    total = {key: _total(data.get(key)) for key in named}
    texts = [f"{total[key]:,} {what}" for key, what in named.items() if total[key]]
    texts += [kind for kind in ("sparse", "multilabel") if data.get(kind)]
    texts += [str(note) for note in data.get("notes", ())]
    name = str(data.get("name", ""))
    return f"{name}: {', '.join(texts)}" if texts else name


def _total(numbers: Any) -> int:
    """The sum of a number, or of those of several arrays."""
    if isinstance(numbers, dict):
        numbers = list(numbers.values())
    if isinstance(numbers, list | tuple):
        return sum(map(_total, numbers))
    return numbers or 0


def _table(rows: Sequence[dict[str, Any]], caption: Sequence[str] = ()) -> Any:
    """The arguments of the template's table: one record per row, in any columns.

    Columns in which no row has anything are omitted.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    cells = {
        name: [_text(row.get(name), name) for row in rows]
        for name in names
        if any(row.get(name) not in (*NOTHING, 0) for row in rows)
    }
    kinds = {"settings": "code", "why": "text"}
    for name, texts in cells.items():
        numbers = all(re.fullmatch(r"([-+\d.,e]|nan|inf|diverged)*", t) for t in texts)
        kinds.setdefault(name, "number" if numbers else "name")
    return {
        "header": tuple(cells),
        "rows": tuple(zip(*cells.values(), strict=True)),
        "kinds": [kinds[name] for name in cells],
        "caption": caption,
    }


def _text(value: Any, name: str = "") -> str:
    """A value for a reader; empty if it says nothing."""
    if isinstance(value, float):
        digits = ".1f" if "%" in name else ",.2f" if "MB" in name else ""
        return format(value, digits) if digits else number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if value in NOTHING or isinstance(value, str):
        return value or ""
    return _setting(value)


def _values(c: Any) -> dict[str, Any]:
    """The metric at six times, for readers who do not see the curves."""
    curves = curves_of(c.histories, c.metric, "seconds")
    ends = [x.end[0] for x in curves if len(x.points)]
    times = np.linspace(0, max(ends, default=0), 6)
    rows = []
    for x in curves:
        row: dict[str, Any] = {"strategy": x.name}
        for t in times if len(x.points) else ():
            last = np.searchsorted(x.points, t, "right") - 1
            if last >= 0 and t <= x.end[0]:
                row[f"{number(t)} s"] = f"{x.median[last]:.4g}"
        rows.append(row)
    return _table(rows)


def _workers(history: History) -> dict[str, Any]:
    """A table of all workers."""
    length = history.duration or 1.0
    return _table(
        [
            {
                "worker": w.name,
                **{f"{kind} [%]": 100 * getattr(w, kind) / length for kind in KINDS},
                "updates": w.updates,
                "examples": w.examples,
                "merges": sum(w.staleness.values()),
                "MB from it": w.bytes_received / 1e6,
                "MB to it": w.bytes_sent / 1e6,
                "padding examples": w.padded,
                "lost rounds": w.lost,
                "cancelled rounds": w.cancelled,
                "cancelled [%]": 100 * w.cancelled_seconds / length,
                "NaN rounds": w.nans,
            }
            for w in history.workers
        ]
    )


def _events(histories: Sequence[History]) -> dict[str, Any]:
    """A table of worker events."""
    return _table(
        [
            {
                **{"strategy": h.strategy, "seed": str(h.seed), "seconds": e.seconds},
                **{"worker": e.worker, "event": e.what, "why": e.why},
            }
            for h in histories
            for e in h.events
        ]
    )


def _strategies(histories: Sequence[History]) -> dict[str, Any]:
    """The parts and all settings of every strategy."""
    rows = []
    for h in histories:
        settings = (f"{k}={_setting(v)}" for k, v in plain(h.settings).items())
        parts = {"local update" if k == "local" else k: v for k, v in h.parts.items()}
        rows.append({"strategy": h.strategy, **parts, "settings": ", ".join(settings)})
    return _table(rows)


def _tuning(tuning: dict[str, Any], metric: str) -> dict[str, Any]:
    """The scores of the learning rates that were tried."""
    scores = tuning["scores"]
    rates = sorted({rate for found in scores.values() for rate in found}, key=float)
    rows = []
    for name, found in scores.items():
        # None in JSON data
        texts = {k: "diverged" if v is None else f"{v:.4g}" for k, v in found.items()}
        row = {"strategy": name, **{rate: texts.get(rate, "") for rate in rates}}
        rows.append({**row, "chosen": str(tuning["chosen"].get(name, ""))})
    whose = "one for all" if tuning["tune"] == "common" else "each strategy its own"
    score = tuning.get("score", "best")  # missing in earlier versions
    caption = (
        f"{score.capitalize()} {metric} at each learning rate, on "
        f"{tuning['held_out']:,} held-out training examples; {whose}."
    )
    return _table(rows, (caption,))


def _about_machine(
    machine: dict[str, Any], histories: Sequence[History]
) -> list[tuple[str, str]]:
    """What a machine's record says of the whole machine, and how runs used it."""
    found = {k: _text(v) for k, v in machine.items() if k not in ("workers", "links")}
    if isinstance(machine.get("workers"), int):  # in a manual description
        found["workers"] = str(machine["workers"])
    real = [h for h in histories if h.real]
    modes = dict.fromkeys(f"{k}: {m}" for h in real for k, m in h.step_modes.items())
    played = by_player(histories)
    texts = [f"{', '.join(names)}: {how}" for how, names in played.items()]
    found["placement"] = "; ".join(dict.fromkeys(h.placement for h in real))
    found["step modes"] = ", ".join(modes)
    found["played"] = "; ".join(texts if len(played) > 1 else played)
    return [(name, text) for name, text in found.items() if text]


def _machine_tables(machine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Workers and links as the rows of tables."""
    workers, links = machine.get("workers"), machine.get("links")
    if isinstance(workers, list):
        yield _records("worker", {str(i): w for i, w in enumerate(workers)})
    if isinstance(links, dict):
        yield _records("link", {name or "root": v for name, v in links.items()})


def _records(what: str, records: dict[str, Any]) -> dict[str, Any]:
    flat = {name: _flat(record) for name, record in records.items()}
    rows = [{what: str(r.pop("name", name)), **r} for name, r in flat.items()]
    return _table(rows)


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """A nested record as a flat one, with dots in the names."""
    if not isinstance(record, dict):
        return {prefix.removesuffix("."): record}
    found: dict[str, Any] = {}
    for name, value in record.items():
        inner = isinstance(value, dict)
        found |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return found


def _call(c: Any, machine: dict[str, Any]) -> str:
    """The call of `hetjax.compare`, as far as it is known from the runs."""
    longest = {n: max(h.duration for h in c.of(n)) for n in c.strategies}
    alike = len(set(longest.values())) == 1 or any(h.stopped for h in c.histories)
    found: dict[str, Any] = {
        "seconds": max(longest.values()) if alike else longest,
        "seeds": tuple(sorted({h.seed for h in c.histories})),
        "num_evals": max(len(h.evals) for h in c.histories) - 1,
    }
    parts = {h.eval_examples for h in c.histories}
    if len(parts) == 1 and parts != {0}:
        (found["eval_examples"],) = parts
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
    given = ", ".join(f"{name}={value!r}" for name, value in found.items())
    call = f"hetjax.compare(task, data, machine, strategies, {given})"
    return f"machine = {machine['call']}\n{call}" if "call" in machine else call


def _setting(value: Any) -> str:
    """A setting's value from JSON data, in Python's notation."""
    return repr(tuple(value)) if isinstance(value, list) else repr(value)
