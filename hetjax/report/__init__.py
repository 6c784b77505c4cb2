"""Histories and their presentation: tables, plots and files.

Start with `comparison.py`: the result of `hetjax.compare`.
"""

from hetjax.engine.records.event_log import Log, LogEntry
from hetjax.engine.records.history import History, WorkerEvent
from hetjax.engine.records.timeline import Segment, Timeline, WorkerRecord
from hetjax.report import plot
from hetjax.report.comparison import Comparison
from hetjax.report.results_folder import RUNS, check_out, write_results
from hetjax.report.table import Table

__all__ = [
    "RUNS",
    "WorkerEvent",
    "History",
    "Comparison",
    "Log",
    "LogEntry",
    "Segment",
    "Table",
    "Timeline",
    "WorkerRecord",
    "check_out",
    "plot",
    "write_results",
]
