"""Data sets on the host: readers, arrays in memory, digits and synthetic data."""

from hetjax.data.dataset import Dataset, Split
from hetjax.data.digits import digits
from hetjax.data.errors import DataError
from hetjax.data.memory import from_arrays
from hetjax.data.synthetic import SHAPES, synthetic_xmc
from hetjax.data.xmc import read_folder, read_xmc

__all__ = [
    "SHAPES",
    "DataError",
    "Dataset",
    "Split",
    "digits",
    "from_arrays",
    "read_folder",
    "read_xmc",
    "synthetic_xmc",
]
