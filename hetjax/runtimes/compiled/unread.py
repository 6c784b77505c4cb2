"""Metrics that nobody may read, as what happens would then depend on them."""

from typing import Any, NoReturn


class Unread(dict[str, float]):
    """The metrics of an evaluation, of which a policy is told that there are some."""

    def __init__(self, error: Exception):
        """`error` is raised for whoever reads them."""
        super().__init__()
        self._error = error

    def _read(self, *args: Any) -> NoReturn:
        raise self._error

    __getitem__ = __contains__ = __iter__ = __len__ = _read  # pyright: ignore
    get = keys = values = items = _read  # pyright: ignore
