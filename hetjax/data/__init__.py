"""Data sets on the host: readers, official and synthetic data, shards for workers."""

from hetjax.data.dataset import Dataset, Split
from hetjax.data.digits import digits
from hetjax.data.from_arrays import from_arrays
from hetjax.data.from_sources import from_source
from hetjax.data.labels import commonest_labels
from hetjax.data.partition import dirichlet, iid
from hetjax.data.readers import DataError
from hetjax.data.readers.image_arrays import (
    read_cifar,
    read_idx,
    read_idx_folder,
)
from hetjax.data.readers.image_folder import read_image_folder
from hetjax.data.readers.libsvm import read_libsvm
from hetjax.data.readers.named_sets import (
    ag_news,
    cifar10,
    cifar100,
    fashion_mnist,
    flowers102,
    mnist,
    tiny_imagenet,
)
from hetjax.data.readers.xmc import read_folder, read_xmc
from hetjax.data.synthetic import SHAPES, synthetic_xmc
from hetjax.data.tokens import from_tokens

__all__ = [
    "SHAPES",
    "DataError",
    "Dataset",
    "Split",
    "ag_news",
    "cifar10",
    "cifar100",
    "commonest_labels",
    "digits",
    "dirichlet",
    "fashion_mnist",
    "flowers102",
    "from_arrays",
    "from_source",
    "from_tokens",
    "iid",
    "mnist",
    "read_cifar",
    "read_folder",
    "read_idx",
    "read_idx_folder",
    "read_image_folder",
    "read_libsvm",
    "read_xmc",
    "synthetic_xmc",
    "tiny_imagenet",
]
