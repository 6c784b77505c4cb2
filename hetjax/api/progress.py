"""Progress: a bar for each run on a terminal or in a notebook, otherwise lines.

It shows the seconds of the clock that are done, their rate per second of the host, the
time left, and the metric. Between evaluations it follows the clock. A line is printed
at the first evaluation, for every tenth of the whole, and after a minute without one.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tqdm import tqdm

from hetjax.processes.exchange import is_first

LINES = 10  # for the whole call, if the output is not a terminal
SILENCE = 60.0  # [s] of the host between two lines, at most
_PERIOD = 0.5  # [s] between two readings of the clock
_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g}{unit} [{elapsed}<"
_FORMAT += "{remaining}, {rate_fmt}{postfix}]"


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
        # of the run in progress: [s] its length, and shown
        self._bar = tqdm(disable=True)
        self._seconds = self._at = 0.0
        self._before = 0.0  # [s] of earlier runs
        self._ran = 0.0  # [s] of all runs, without skipped seconds
        # [s] of the host: start, time that the clocks ran, and when it was last added
        self._started, self._running, self._looked = time.perf_counter(), 0.0, 0.0
        self._printed, self._last = 0, -math.inf  # tenths in the last line; its time
        self._name = self._metric = ""
        self._lock = threading.Lock()  # another thread follows the clock

    def begin(self, name: str, seconds: float) -> None:
        """Begin a run of `seconds`."""
        self.close()
        self._run += 1
        self._runs = self._runs or round(self._total / seconds)
        self._name, self._metric, self._seconds = name, "", seconds
        self._bar = tqdm(
            desc=f"{name} ({self._run}/{self._runs})" if self._runs > 1 else name,
            total=seconds,
            unit=self._unit,
            bar_format=_FORMAT,
            disable=self._lines or not self._shown,
        )

    def advance(
        self, at: float, metrics: dict[str, Any], metric: str, *, ran: bool = True
    ) -> None:
        """Show that the run has been evaluated `at` [s], and its latest metric.

        ran=False is for seconds before a resumed run: rates exclude them.
        """
        self._metric = f"{metric} {metrics[metric]:.4f}"
        self._bar.set_postfix_str(self._metric, refresh=False)
        self._move_to(at, ran=ran)
        self._say()

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
        self._looked = time.perf_counter()
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
            if ran:
                now = time.perf_counter()
                self._running, self._looked = self._running + now - self._looked, now
            step = min(at, self._seconds) - self._at
            if step <= 0:
                return
            self._at += step
            if at >= self._seconds:  # the sum of all steps may differ by rounding
                self._bar.total = self._bar.n + step
            if ran:
                self._ran += step
                self._bar.update(step)
            elif not self._bar.disable:
                for name in ("n", "initial", "last_print_n"):
                    setattr(self._bar, name, getattr(self._bar, name) + step)
                self._bar.refresh()
            self._say()

    def _say(self) -> None:
        """Print a line if another tenth is done, or after a long silence."""
        done, now = self._before + self._at, time.perf_counter()
        tenth = int(LINES * done / self._total * (1 + 1e-9))
        soon = tenth <= self._printed and now - self._last < SILENCE
        if soon or not (self._lines and self._shown):
            return
        self._printed, self._last = tenth, now
        parts = [f"{100 * done / self._total:3.0f} %", self._name, self._metric]
        if self._ran > 0 and self._running > 0:
            rate = self._ran / self._running
            preparing = (now - self._started - self._running) / self._run
            left = (self._total - done) / rate + (self._runs - self._run) * preparing
            parts.append(f"{rate:.3g}{self._unit} per second")
            parts.append(f"{tqdm.format_interval(left)} left")
        print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the run in progress, and leave its bar on the screen."""
        self._before += self._seconds
        self._seconds = self._at = 0.0
        self._bar.close()


class _LineByLine:
    """Standard error that cannot be overwritten: every text of tqdm is a line."""

    def write(self, text: str) -> None:
        """Print a text without the control characters and spaces around it."""
        if text := text.strip():
            print(text, file=sys.stderr, flush=True)


def step_bar(total: int, unit: str, *, shown: bool, silence: float = SILENCE) -> tqdm:
    """Return a bar of steps; without a terminal, `update` prints a line at times."""
    bar = partial(tqdm, total=total, unit=unit, disable=not (shown and is_first()))
    if takes_bars():
        return bar()
    return bar(
        file=_LineByLine(),
        bar_format="{desc}, {n} of {total} {unit}s",
        mininterval=silence,
        miniters=0,
        delay=1e-9,  # otherwise a line is printed at once
        leave=False,
    )


def takes_bars() -> bool:
    """Whether the output can be overwritten: on a terminal or in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"
