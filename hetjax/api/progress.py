"""Progress: a bar for each run on a terminal or in a notebook, else lines.

It shows the seconds of the clock that are done, how many of them pass in a second while
it runs, the time left, and the metric. Between evaluations it follows the clock. There
is a line at the first evaluation, for every tenth of the whole, and after a minute
without one.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from hetjax.runtimes.mesh.processes import is_first

LINES = 10  # where the output is no terminal: so many for the whole call
SILENCE = 60.0  # [s] of the host between two lines, at most
_LOOK = 0.5  # [s] between two looks at the clock
_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g} UNIT [{elapsed}<"
_FORMAT += "{remaining}, {rate_fmt}{postfix}]"


class ProgressBar:
    """The progress of all runs of a call, on standard error; hidden if not `shown`.

    Of several processes, process 0 alone shows it.
    """

    def __init__(
        self,
        seconds: float,
        runs: int | None = None,
        *,
        shown: bool = True,
        real: bool = False,
    ):
        """`seconds` of the clock, virtual or `real`, are the sum over all `runs`.

        By default, these are all as long as the one that is on.
        """
        self._runs = runs
        self._unit = "s" if real else "virtual s"
        self._total, self._before = seconds, 0.0  # [s], of earlier runs
        self._shown = shown and is_first()
        self._in_bars = takes_bars()
        self._bar: Any = None
        self._run = 0  # runs begun
        self._seconds = self._at = self._reached = 0.0  # of this run
        self._skipped = 0.0  # [s] of all runs that took no time
        # [s] of the host in which clocks ran, and since when this run's does
        self._running, self._since = 0.0, None
        self._said, self._started = -1, time.perf_counter()  # tenths said
        self._last = -math.inf  # [s] when the last line was said
        self._name, self._metric = "", ""
        self._lock = threading.Lock()  # the clock is followed in another thread

    def begin(self, name: str, seconds: float) -> None:
        """Begin a run of so many seconds."""
        self._end_run()
        self._run += 1
        self._name, self._metric, self._seconds = name, "", seconds
        if not (self._shown and self._in_bars):
            return
        runs = self._runs or round(self._total / seconds)
        of = f" ({self._run}/{runs})" if runs > 1 else ""
        unit = " " + self._unit
        bar_format = _FORMAT.replace("UNIT", self._unit)
        self._bar = tqdm(
            desc=name + of, total=round(seconds, 9), unit=unit, bar_format=bar_format
        )

    def advance(
        self, seconds: float, metrics: dict[str, Any], metric: str, *, ran: bool = True
    ) -> None:
        """Move the run `seconds` further and show its latest metric.

        Not `ran` are seconds of a run that goes on, which ran before: see `skip`.
        """
        self._metric = f"{metric} {metrics[metric]:.4f}"
        if self._bar is not None:
            self._bar.set_postfix_str(self._metric, refresh=False)
        self._go(seconds, ran=ran)
        if self._shown and self._bar is None:
            self._say()

    def skip(self, seconds: float) -> None:
        """Move the run `seconds` further that do not run: rates are without them."""
        self._go(seconds, ran=False)

    def _go(self, seconds: float, *, ran: bool) -> None:
        self._reached += seconds
        self._move_to(self._reached, ran=ran)

    @contextmanager
    def following(self, now: Callable[[], float]) -> Iterator[None]:
        """Follow a clock, which says how far the run is, between its evaluations."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(_LOOK):
                self._move_to(now())

        thread = threading.Thread(target=follow, daemon=True, name="progress")
        self._since = time.perf_counter()
        if self._shown:
            thread.start()
        try:
            yield
        finally:
            self._running += time.perf_counter() - self._since
            self._since = None
            over.set()
            if self._shown:
                thread.join()

    def _move_to(self, at: float, *, ran: bool = True) -> None:
        """Show that the run is so far; it never goes back, nor beyond its end."""
        with self._lock:
            step = min(at, self._seconds) - self._at
            if step <= 0:
                return
            self._at += step
            self._skipped += 0.0 if ran else step
            if self._bar is None:
                if self._shown:
                    self._say()
            elif ran:
                self._bar.update(step)
            else:
                self._bar.n += step
                self._bar.initial += step
                self._bar.refresh()

    def _say(self) -> None:
        """Print a line if another tenth is done, or the last line was long ago."""
        done, now = self._before + self._at, time.perf_counter()
        tenth = int(LINES * done / self._total * (1 + 1e-9))
        if tenth <= self._said and now - self._last < SILENCE:
            return
        self._said, self._last = tenth, now
        parts = [f"{100 * done / self._total:3.0f} %", self._name, self._metric]
        running = self._running + (0.0 if self._since is None else now - self._since)
        if done > self._skipped and running > 0:
            rate = (done - self._skipped) / running
            preparing = now - self._started - running
            left = tqdm.format_interval(self._left(done, rate, preparing))
            parts += [f"{rate:.3g} {self._unit} per second", f"{left} left"]
        print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def _left(self, done: float, rate: float, preparing: float) -> float:
        """[s] of the host to the end, with those in which runs to come are prepared.

        `preparing` [s] took as many runs as there were.
        """
        to_come = (self._total - self._before) / self._seconds - 1
        if self._runs is not None:
            to_come = self._runs - self._run
        return (self._total - done) / rate + to_come * preparing / self._run

    def _end_run(self) -> None:
        self._before += self._seconds
        self._seconds = self._at = self._reached = 0.0
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        self._end_run()


def takes_bars() -> bool:
    """Can the output be written over? A terminal can, and a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"
