"""The machine of a comparison: workers, links, and everything else in its record."""

from collections.abc import Sequence
from typing import Any

from hetjax.engine.records.history import History
from hetjax.report.page.html_parts import html_table, number, pairs, paragraph, setting
from hetjax.report.summary_table import by_player

NOTHING = (None, "", [], {}, False)  # values that are not shown


def machine_html(machine: dict[str, Any], histories: Sequence[History]) -> str:
    """The machine's record (JSON data) as tables."""
    workers = machine.get("workers")
    others = {k: v for k, v in machine.items() if k not in ("workers", "links")}
    rows = [(k, _text(v)) for k, v in others.items() if v not in NOTHING]
    rows += [*_placements(histories), *_players(histories)]
    if isinstance(workers, int):  # in a manual description of a machine
        rows.append(("workers", str(workers)))
    body = pairs(rows) if rows else ""
    if isinstance(workers, list):
        body += _records("worker", {str(i): w for i, w in enumerate(workers)})
    links = machine.get("links")
    if isinstance(links, dict):
        body += _records("link", {name or "root": v for name, v in links.items()})
    return body or paragraph("The machine has no description.")


def _placements(histories: Sequence[History]) -> list[tuple[str, str]]:
    """The placement of replicas and the modes of steps, on real devices."""
    real = [h for h in histories if h.real]
    placed = dict.fromkeys(h.placement for h in real if h.placement)
    modes = dict.fromkeys(f"{k}: {m}" for h in real for k, m in h.step_modes.items())
    found = [("placement", "; ".join(placed)), ("step modes", ", ".join(modes))]
    return [(name, text) for name, text in found if text]


def _players(histories: Sequence[History]) -> list[tuple[str, str]]:
    """The players of simulated runs, with the strategies if there are several."""
    found = by_player(histories)
    texts = [f"{', '.join(names)}: {played}" for played, names in found.items()]
    text = "; ".join(texts if len(found) > 1 else found)
    return [("played", text)] if text else []


def _records(what: str, records: dict[str, Any]) -> str:
    """Records as the rows of a table, without empty columns."""
    flat = {name: _flat(record) for name, record in records.items()}
    columns = list(dict.fromkeys(k for found in flat.values() for k in found))
    shown = [
        k for k in columns if any(f.get(k) not in (*NOTHING, 0) for f in flat.values())
    ]
    named = "name" in shown
    header = [what, *(k for k in shown if k != "name")]
    rows = [
        [
            str(found.get("name")) if named else name,
            *(_text(found.get(k)) for k in header[1:]),
        ]
        for name, found in flat.items()
    ]
    numeric = [
        all(isinstance(f.get(k), int | float | None) for f in flat.values())
        for k in header[1:]
    ]
    kinds = ["name", *("number" if n else "name" for n in numeric)]
    return html_table(header, rows, kinds)


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """A nested record as a flat one, with dots in the names."""
    if not isinstance(record, dict):
        return {prefix.removesuffix("."): record}
    found: dict[str, Any] = {}
    for name, value in record.items():
        inner = isinstance(value, dict)
        found |= (
            _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
        )
    return found


def _text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return (
        "" if value in NOTHING else value if isinstance(value, str) else setting(value)
    )
