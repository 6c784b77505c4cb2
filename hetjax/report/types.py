"""The part of `hetjax.report.Comparison` that its table and its page need."""

from typing import TYPE_CHECKING, Any, Protocol

from hetjax.engine.records.history import History
from hetjax.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ComparisonLike(Protocol):
    """A comparison; a protocol, since `Comparison` imports the table and the page."""

    histories: list[History]
    data: dict[str, Any]
    machine: dict[str, Any]
    tuning: dict[str, Any] | None
    versions: dict[str, str]
    metric: str
    mode: str
    target: float
    target_is_default: bool
    constant: float | None

    @property
    def strategies(self) -> list[str]: ...  # noqa: D102
    @property
    def budget(self) -> float | None: ...  # noqa: D102
    @property
    def unit(self) -> str: ...  # noqa: D102
    @property
    def interrupted(self) -> bool: ...  # noqa: D102
    def summary(self) -> list[dict[str, Any]]: ...  # noqa: D102
    def table(self) -> Table: ...  # noqa: D102
    def plot(self, x: str = "seconds") -> "Figure": ...  # noqa: D102
    def plot_batch_sizes(self) -> "Figure": ...  # noqa: D102
