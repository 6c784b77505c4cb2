"""The progress bar of a run: virtual seconds done, rate, time left and the metric."""

from typing import Any

from tqdm import tqdm


class ProgressBar:
    """A tqdm bar on standard error over all the runs of a job; or none at all."""

    def __init__(self, seconds: float, *, shown: bool = True, real: bool = False):
        """`seconds` of the clock that all runs have together, virtual or `real`."""
        unit = "s" if real else "virtual s"
        self._bar = tqdm(
            total=round(seconds, 9),
            disable=not shown,
            unit="s",
            bar_format="{desc} {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g} "
            f"{unit} "
            "[{elapsed}<{remaining}, {rate_fmt}{postfix}]",
        )
        self._total = seconds
        self._done = 0.0

    def begin(self, name: str) -> None:
        """A run begins."""
        self._bar.set_description_str(name, refresh=False)

    def advance(self, seconds: float, metrics: dict[str, Any], metric: str) -> None:
        """A run has come `seconds` further, and stands at these metrics."""
        self._bar.set_postfix_str(f"{metric} {metrics[metric]:.4f}", refresh=False)
        self.skip(seconds)

    def skip(self, seconds: float) -> None:
        """Seconds that are behind us, run or not."""
        # rounding must not carry the bar beyond its end
        step = min(seconds, self._total - self._done)
        self._done += step
        self._bar.update(step)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()
