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

    note = ""
    if len(c.histories) > len(c.strategies):
        note = "Medians over seeds, bands from lowest to highest."
    time = "time" if c.unit == "seconds" else "virtual time"
    over = {"seconds": time, "examples": "the examples that all workers processed"}
    target = c.target if math.isfinite(c.target) else math.nan
    curves = [
        figure(
            interactive.curves(c.histories, x, target), f"{c.metric} over {what}", note
        )
        for x, what in over.items()
    ]
    batch_sizes = [
        figure(interactive.batch_sizes(h), f"{h.strategy}: workers' batch sizes")
        for h in filter(batch_sizes_changed, shown)
    ]
    timelines = []
    if not any(isinstance(h.timeline, NotStored) for h in shown):
        for h, (plot, note) in zip(shown, interactive.timelines(shown), strict=True):
            caption = f"{h.strategy}, seed {h.seed}: each worker's time"
            timelines.append(figure(plot, caption, note))
    rows = c.summary()
    best = best_of([row["final"] for row in rows], c.mode)
    first = min((t for r in rows if (t := r["seconds_to_target"])), default=None)
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


def _values(c: Any) -> dict[str, Any]:
    """The metric at six times, for readers who do not see the curves."""
    curves = curves_of(c.histories, c.metric, "seconds")
    ends = [x.end[0] for x in curves if len(x.points)]
    times = np.linspace(0, max(ends, default=0), 6)
    rows = []
    for x in curves:
        last = np.searchsorted(x.points, times, "right") - 1
        over = times > x.end[0] if len(x.points) else True
        known = (last >= 0) & ~np.asarray(over)
        cells = [
            f"{x.median[i]:.4g}" if k else "" for i, k in zip(last, known, strict=True)
        ]
        rows.append((x.name, *cells))
    return {"header": ("strategy", *(f"{number(t)} s" for t in times)), "rows": rows}


def _workers(history: History) -> dict[str, Any]:
    """A table of all workers, without columns that are empty for all of them."""
    workers, length = history.workers, history.duration or 1.0
    columns = {
        f"{k} [%]": [100 * getattr(w, k) / length for w in workers] for k in KINDS
    }
    texts = {
        name: [f"{share:.1f}" for share in shares]
        for name, shares in columns.items()
        if any(shares)
    }
    counts = {
        "updates": [w.updates for w in workers],
        "examples": [w.examples for w in workers],
        "merges": [sum(w.staleness.values()) for w in workers],
        "MB from it": [w.bytes_received / 1e6 for w in workers],
        "MB to it": [w.bytes_sent / 1e6 for w in workers],
        "padding examples": [w.padded for w in workers],
        "lost rounds": [w.lost for w in workers],
        "NaN rounds": [w.nans for w in workers],
    }
    for name, found in counts.items():
        if any(found):
            texts[name] = [f"{n:,.2f}" if "MB" in name else f"{n:,}" for n in found]
    rows = list(zip([w.name for w in workers], *texts.values(), strict=True))
    return {"header": ("worker", *texts), "rows": rows}


def _events(histories: Sequence[History]) -> dict[str, Any]:
    """A table of worker events."""
    rows = [
        (h.strategy, str(h.seed), number(e.seconds), e.worker, e.what, e.why)
        for h in histories
        for e in h.events
    ]
    header = ("strategy", "seed", "seconds", "worker", "event", "why")
    kinds = ("name", "number", "number", "name", "name", "text")
    return {"header": header, "rows": rows, "kinds": kinds}


def _strategies(histories: Sequence[History]) -> dict[str, Any]:
    """The parts and all settings of every strategy."""
    parts = {"policy": "policy", "local": "local update", "merge": "merge"}
    parts["sampler"] = "sampler"
    known = {k: v for k, v in parts.items() if any(k in h.parts for h in histories)}
    rows = [
        (
            h.strategy,
            *(h.parts.get(k, "") for k in known),
            ", ".join(f"{k}={_setting(v)}" for k, v in plain(h.settings).items()),
        )
        for h in histories
    ]
    kinds = ["name", *("name" for _ in known), "code"]
    header = ("strategy", *known.values(), "settings")
    return {"header": header, "rows": rows, "kinds": kinds}


def _tuning(tuning: dict[str, Any], metric: str) -> dict[str, Any]:
    """The scores of the learning rates that were tried."""
    scores = tuning["scores"]
    rates = {rate: None for found in scores.values() for rate in found}
    rates = sorted(rates, key=float)

    def text(value: float | str | None) -> str:
        if value is None:  # in JSON data
            return "diverged"
        return value if isinstance(value, str) else f"{value:.4g}"

    rows = [
        (
            name,
            *(text(found.get(rate, "")) for rate in rates),
            str(tuning["chosen"].get(name, "")),
        )
        for name, found in scores.items()
    ]
    whose = "one for all" if tuning["tune"] == "common" else "each strategy its own"
    score = tuning.get("score", "best")  # missing in earlier versions
    caption = (
        f"{score.capitalize()} {metric} at each learning rate, on "
        f"{tuning['held_out']:,} held-out training examples; {whose}."
    )
    header = ("strategy", *rates, "chosen")
    return {"header": header, "rows": rows, "caption": (caption,)}


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
    """Workers and links as the rows of tables, without empty columns."""
    workers, links = machine.get("workers"), machine.get("links")
    if isinstance(workers, list):
        yield _records("worker", {str(i): w for i, w in enumerate(workers)})
    if isinstance(links, dict):
        yield _records("link", {name or "root": v for name, v in links.items()})


def _records(what: str, records: dict[str, Any]) -> dict[str, Any]:
    flat = {name: _flat(record) for name, record in records.items()}
    columns = dict.fromkeys(k for found in flat.values() for k in found if k != "name")
    shown = [
        k for k in columns if any(f.get(k) not in (*NOTHING, 0) for f in flat.values())
    ]
    rows = [
        (str(found.get("name", name)), *(_text(found.get(k)) for k in shown))
        for name, found in flat.items()
    ]
    numeric = [
        all(isinstance(f.get(k), int | float | None) for f in flat.values())
        for k in shown
    ]
    kinds = ["name", *("number" if n else "name" for n in numeric)]
    return {"header": (what, *shown), "rows": rows, "kinds": kinds}


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


def _text(value: Any) -> str:
    """A value of a machine's record; empty if it says nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    if value in NOTHING or isinstance(value, str):
        return value or ""
    return _setting(value)
