"""How long a merge waits for more workers after enough have come (host world)."""

import math
from typing import NamedTuple

from hetjax.arguments import Fraction, NotNegative, PositiveShare, checked


class GracePeriod(NamedTuple):
    """The settings of a grace period that follows measured seconds."""

    _example = "adaptive_grace()"

    factor: float
    cap: float  # [s]
    share: float  # of a new measurement in a moving average


class MeasuredSeconds(NamedTuple):
    """Moving averages of what a merge of one fragment takes; None: not measured."""

    overlap: float | None = None  # [s] of a learner's round
    quorum: float | None = None  # [s] from a request to the answer that is enough
    merging: float | None = None  # [s] from the last answer to the new fragment

    def with_new(self, share: float, **seconds: float) -> "MeasuredSeconds":
        """The averages after new measurements, of which the first counts alone."""
        old = self._asdict()
        new = {
            name: t if old[name] is None else (1 - share) * old[name] + share * t
            for name, t in seconds.items()
        }
        return self._replace(**new)


@checked
def adaptive_grace(
    *,
    factor: Fraction = 0.9,
    cap: NotNegative | None = None,
    share: PositiveShare = 0.1,
) -> GracePeriod:
    """Waits while learners compute anyway, less a margin.

        x = min(cap, gamma max(0, overlap - quorum - merging))

    with gamma the `factor`, and moving averages of three measured times [s]: of a
    learner's round, of the wait for the quorum, and of the merge. `share` is that of a
    new measurement in its average. Source: Decoupled DiLoCo (arXiv:2604.21428);
    docs/algorithms L.9.
    """
    return GracePeriod(factor, math.inf if cap is None else cap, share)


def grace_seconds(grace: float | GracePeriod, measured: MeasuredSeconds) -> float:
    """Return the grace period [s]."""
    if not isinstance(grace, GracePeriod):
        return grace
    spent = (measured.quorum or 0.0) + (measured.merging or 0.0)
    left = (measured.overlap or 0.0) - spent
    return min(grace.cap, grace.factor * max(0.0, left))
