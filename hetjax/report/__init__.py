"""Histories and what is made of them: tables, plots and files.

Start with `runs`: the result of a comparison.
"""

from hetjax.report import plot
from hetjax.report.files import check_out, write_results
from hetjax.report.history import Happening, History, Segment, Timeline, WorkerRecord
from hetjax.report.runs import Runs
from hetjax.report.table import Table

__all__ = [
    "Happening",
    "History",
    "Runs",
    "Segment",
    "Table",
    "Timeline",
    "WorkerRecord",
    "check_out",
    "plot",
    "write_results",
]
