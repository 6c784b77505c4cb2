"""How the runs of a page are made again: the command or the call, and the versions."""

import re
from html import escape
from typing import Any

from hetjax.engine.records.history import BY_REQUEST, EPOCHS_DONE, REFERENCE
from hetjax.report.page.html import pairs, paragraph
from hetjax.report.page.types import Shown


def repeat_html(c: Shown, machine: dict[str, Any], command: str) -> str:
    """The command or the call, and the versions."""
    text = command or f"hetjax.compare({', '.join(_arguments(c))})"
    if not command and "call" in machine:
        text = f"machine = {machine['call']}\n{text}"
    mine = "" if command else "The task is yours; the strategies' settings are above. "
    same = (
        "Real devices never take the same time twice: the numbers will differ."
        if c.unit == "seconds"
        else "On the same platform, these versions give the same numbers to the bit."
    )
    return (
        f"<pre><code>{escape(text)}</code></pre>"
        + pairs(c.versions.items())
        + paragraph(mine + same, "quiet")
    )


def _arguments(c: Shown) -> list[str]:
    """The arguments of `hetjax.compare`, as far as the runs tell them."""
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
