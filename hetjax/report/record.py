"""Runs as plain values for JSON and CSV, in a fixed order.

Names that differ between runs (settings, metrics, programs) are sorted, so that equal
histories give equal bytes.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

from hetjax.engine.records.history import History

COMMON = ("seconds", "updates", "examples", "loss")  # columns of every evaluation
# numbers of every worker
WORKER_NUMBERS = ("busy", "waiting", "merging", "transfer", "idle")  # [s]
WORKER_NUMBERS += ("updates", "examples", "padded", "lost", "nans")
WORKER_CANCELLED = ("cancelled", "cancelled_seconds")  # rounds, and [s] of them
WORKER_BYTES = ("bytes_received", "bytes_sent")


def plain(value: Any) -> Any:
    """Convert to valid JSON: NaN and infinity to None, unknown types to str()."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        # float() because NumPy's float64 is a float with another repr
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "_asdict"):  # a NamedTuple
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(k): plain(value[k]) for k in sorted(value, key=_rank)}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return [plain(v) for v in sorted(value, key=_rank)]
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and JAX
        return plain(value.tolist())
    # without the address, which differs between processes
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def _rank(key: Any) -> tuple[bool, float, str]:
    """A sort key for keys of mixed types: numbers first, by size."""
    number = isinstance(key, (int, float))
    return (not number, key if number else 0.0, str(key))


def metric_names(points: Iterable[dict[str, float]]) -> tuple[str, ...]:
    """The sorted names of the evaluations' columns other than the common ones."""
    return tuple(sorted({name for p in points for name in p} - set(COMMON)))


_FIELDS = (  # of a history
    *("strategy", "seed", "schedule_seed", "settings", "algorithm", "parts"),
    *("parameters", "command", "output", "duration", "eval_examples"),
    *("at_end", "merges", "root_merges", "unseen_merge"),
    *("merge_times", "compilations", "programs", "compile_seconds", "host_seconds"),
    *("stopped", "real", "placement", "played", "estimates_busy", "step_modes"),
    *("events", "stuck", "interruptions"),
)


def run_record(history: History) -> dict[str, Any]:
    """Return one run as stored in results.json."""
    of_worker = ("name", "node", *WORKER_NUMBERS, *WORKER_CANCELLED, *WORKER_BYTES)
    of_worker += ("batch_size_over_time",)
    found = {name: plain(getattr(history, name)) for name in _FIELDS}
    found["staleness"] = [plain(w.staleness) for w in history.workers]
    found["workers"] = [
        {name: plain(getattr(w, name)) for name in of_worker} for w in history.workers
    ]
    found["evals"] = [
        {name: plain(point[name]) for name in (*COMMON, *metric_names([point]))}
        for point in history.evals
    ]
    if not batch_sizes_changed(history):
        found["merge_times"] = []
    return found


def batch_sizes_changed(history: History) -> bool:
    """Whether any worker had more than one batch size."""
    sizes = ({size for _, size in w.batch_size_over_time} for w in history.workers)
    return any(len(s) > 1 for s in sizes)
