"""Progress by tqdm: a bar for each run on a terminal or in a notebook, otherwise lines.

It shows the seconds of the clock that are done, their rate per second of the host, the
time left, and the metric. Between evaluations it follows the clock. A line is printed
at the first evaluation, for every tenth of the whole, and after a minute without one.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from hetjax.processes.exchange import is_first

SILENCE = 60.0  # [s] of the host between two lines, at most
_PERIOD = 0.5  # [s] between two readings of the clock
_TENTH = 0.1 * (1 - 1e-9)  # of the whole, between two lines; sums of steps are rounded
_BAR = "{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g}{unit} [{elapsed}<"
_BAR += "{remaining}, {rate_noinv_fmt}{postfix}]"
_LINE = "{percentage:3.0f} %, {desc}{postfix}"
_RATE = ", {rate_noinv_fmt}, {remaining} left"


class ProgressBar:
    """The progress of all runs of a call, if `shown`: process 0 writes it to stderr."""

    def __init__(
        self, seconds: float, runs: int = 0, *, shown: bool = True, real: bool = False
    ):
        """`seconds` of the clock, virtual or `real`, are the sum over all `runs`.

        With runs=0, all runs are as long as the first.
        """
        self._total, self._runs, self._run = seconds, runs, 0
        self._unit = " s" if real else " virtual s"
        self._shown, self._lines = shown and is_first(), not takes_bars()
        self._seconds = self._at = 0.0  # of the run in progress: its length, and shown
        self._bar = tqdm(disable=True)
        if self._lines and self._shown:
            self._bar = _lines(seconds, self._unit, _LINE)
        self._lock = threading.Lock()  # another thread follows the clock

    def begin(self, name: str, seconds: float) -> None:
        """Begin a run of `seconds`."""
        self._run += 1
        self._runs = self._runs or round(self._total / seconds)
        self._seconds, self._at = seconds, 0.0
        if self._lines:
            self._bar.set_description_str(name, refresh=False)
            self._bar.set_postfix_str("", refresh=False)
            return
        self._bar.close()
        self._bar = tqdm(
            desc=f"{name} ({self._run}/{self._runs})" if self._runs > 1 else name,
            total=seconds,
            unit=self._unit,
            bar_format=_BAR,
            smoothing=0,
            disable=not self._shown,
        )

    def advance(
        self, at: float, metrics: dict[str, Any], metric: str, *, ran: bool = True
    ) -> None:
        """Show that the run has been evaluated `at` [s], and its latest metric.

        ran=False is for seconds before a resumed run: rates exclude them.
        """
        self._bar.set_postfix_str(f"{metric} {metrics[metric]:.4f}", refresh=False)
        self._move_to(at, ran=ran)

    def finish(self) -> None:
        """Move the run to its end without running; rates exclude what remained."""
        self._move_to(self._seconds, ran=False)

    @contextmanager
    def following(self, now: Callable[[], float]) -> Iterator[None]:
        """Follow the run's clock between its evaluations."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(_PERIOD):
                self._move_to(now())

        thread = threading.Thread(target=follow, daemon=True, name="progress")
        if self._shown:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if self._shown:
                thread.join()

    def _move_to(self, at: float, *, ran: bool = True) -> None:
        """Show that the run has reached `at` [s]; never go back or past its end."""
        with self._lock:
            bar, step = self._bar, max(0.0, min(at, self._seconds) - self._at)
            if bar.disable:
                return
            self._at += step
            left = bar.total - bar.n - step
            if at >= self._seconds and abs(left) < 1e-6 * bar.total:
                bar.total = bar.n + step  # the sum of all steps may differ by rounding
            if not ran:
                bar.n, bar.initial = bar.n + step, bar.initial + step
            if self._lines:
                first = bar.last_print_t == bar.start_t
                quiet = time.time() - bar.last_print_t >= SILENCE
                bar.miniters = 0 if first or quiet else _TENTH * self._total
                bar.bar_format = _LINE + _RATE * (bar.n + step * ran > bar.initial)
                bar.update(step * ran)
            elif ran and step:
                bar.update(step)
            else:
                bar.refresh()

    def close(self) -> None:
        """End the run in progress, and leave its bar on the screen."""
        self._bar.close()


class _LineByLine:
    """Standard error that cannot be overwritten: every text of tqdm is a line."""

    def write(self, text: str) -> None:
        """Print a text without the control characters and spaces around it."""
        if text := text.strip("\r\n").rstrip():
            print(text, file=sys.stderr, flush=True)


def _lines(total: float, unit: str, text: str, **options: Any) -> tqdm:
    """Return a bar that prints a line from time to time."""
    return tqdm(
        total=total,
        unit=unit,
        bar_format=text,
        file=_LineByLine(),
        smoothing=0,
        delay=1e-9,  # otherwise a line is printed at once
        leave=False,
        position=0,  # others would be moved to with control characters
        **{"mininterval": 0, "miniters": 0, **options},
    )


def step_bar(total: int, unit: str, *, shown: bool, silence: float = SILENCE) -> tqdm:
    """Return a bar of steps; without a terminal, `update` prints a line at times."""
    if not shown or not is_first() or takes_bars():
        return tqdm(total=total, unit=unit, disable=not (shown and is_first()))
    return _lines(total, unit, "{desc}, {n} of {total} {unit}s", mininterval=silence)


def takes_bars() -> bool:
    """Whether the output can be overwritten: on a terminal or in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"
