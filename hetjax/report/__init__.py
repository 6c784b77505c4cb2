"""Histories and what is made of them: tables, plots and files.

Start with `runs`: the result of a comparison.
"""

from hetjax.engine.records.history import (
    History,
    Segment,
    Timeline,
    WorkerEvent,
    WorkerRecord,
)
from hetjax.report import plot
from hetjax.report.comparison import Comparison
from hetjax.report.files import check_out, write_results
from hetjax.report.table import Table

__all__ = [
    "WorkerEvent",
    "History",
    "Comparison",
    "Segment",
    "Table",
    "Timeline",
    "WorkerRecord",
    "check_out",
    "plot",
    "write_results",
]
