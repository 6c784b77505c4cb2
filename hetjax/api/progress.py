"""The progress bar: seconds of the clock done, speed, time left and the metric."""

from typing import Any

from tqdm import tqdm

from hetjax.runtimes.mesh.processes import is_first


class ProgressBar:
    """A tqdm bar on standard error over all runs of a call; hidden if not `shown`.

    Of several processes, process 0 alone shows it.
    """

    def __init__(self, seconds: float, *, shown: bool = True, real: bool = False):
        """`seconds` of the clock, virtual or `real`, are the sum over all runs."""
        unit = "s" if real else "virtual s"
        self._bar = tqdm(
            total=round(seconds, 9),
            disable=not (shown and is_first()),
            unit="s",
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g} "
            f"{unit} "
            "[{elapsed}<{remaining}, {rate_fmt}{postfix}]",
        )
        self._total = seconds
        self._done = 0.0

    def begin(self, name: str) -> None:
        """Show the name of the run that begins."""
        self._bar.set_description_str(name, refresh=False)

    def advance(self, seconds: float, metrics: dict[str, Any], metric: str) -> None:
        """Move the bar `seconds` further and show the run's latest metric."""
        self._bar.set_postfix_str(f"{metric} {metrics[metric]:.4f}", refresh=False)
        self.skip(seconds)

    def skip(self, seconds: float) -> None:
        """Move the bar `seconds` further, whether they were run or skipped."""
        # rounding must not move the bar beyond its end
        step = min(seconds, self._total - self._done)
        self._done += step
        self._bar.update(step)

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        self._bar.close()
