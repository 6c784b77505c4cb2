"""The data of a comparison: their flags, and those of synthetic data and shards."""

from typing import Any

from absl import flags

import hetjax as hj
from experiments.common import bounds, like_data, named_data
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS

flags.DEFINE_string("data", "shifted_digits", f"synthetic_xmc, {named_data.HELP}")
flags.DEFINE_integer(
    "commonest_labels", None, "keep this many labels of a data set with sets of labels"
)
flags.DEFINE_float("dirichlet", None, "uneven shards: concentration, such as 0.3")
flags.DEFINE_integer(
    "first_index", None, "a text's first feature; default: 0 in XMC text, 1 in libSVM"
)
flags.DEFINE_integer("rows", 4096, "synthetic_xmc: training rows")
flags.DEFINE_integer("test_rows", 1024, "synthetic_xmc: test rows")
flags.DEFINE_integer("features", 2000, "synthetic_xmc: features")
flags.DEFINE_integer("labels", 200, "synthetic_xmc: labels")
flags.DEFINE_float("nonzeros", 70.0, "synthetic_xmc: mean non-zeros of a row")
flags.DEFINE_float("labels_per_row", 3.0, "synthetic_xmc: mean labels of a row")
flags.DEFINE_integer("data_seed", 0, "synthetic_xmc: seed of the data")
bounded("commonest_labels", 1, 2**31 - 1, "a model needs labels")
bounded("dirichlet", 1e-6, 1_000_000, "it is a concentration, about 0.3")
bounded("data_seed", *bounds.SEED)
SIZES = ("rows", "test_rows", "features", "labels", "nonzeros", "labels_per_row")


def load_data() -> hj.data.Dataset:
    """The data set, with --commonest_labels only."""
    data = _load_all_labels()
    if FLAGS.commonest_labels is None:
        return data
    if not data.multilabel:
        raise ValueError(
            f"--commonest_labels: {data.name} has one class for each example, not a "
            "set of labels: leave the flag out"
        )
    if FLAGS.commonest_labels > data.num_classes:
        raise ValueError(
            f"--commonest_labels={FLAGS.commonest_labels}: {data.name} has "
            f"{data.num_classes:,} labels"
        )
    return hj.data.commonest_labels(data, FLAGS.commonest_labels)


def _load_all_labels() -> hj.data.Dataset:
    """The data set; a ValueError for a flag that it would ignore.

    A plan needs only the sizes of a public one.
    """
    if FLAGS.plan and FLAGS.data in like_data.SHAPES:
        return like_data.like(FLAGS.data)
    if FLAGS.data == "synthetic_xmc":
        sizes: dict[str, Any] = {name: FLAGS[name].value for name in SIZES}
        return hj.data.synthetic_xmc(**sizes, seed=FLAGS.data_seed)
    for name in (*SIZES, "data_seed"):
        if FLAGS[name].present:
            raise ValueError(
                f"--{name} is for --data=synthetic_xmc, not for --data={FLAGS.data}"
            )
    return named_data.load(
        FLAGS.data, first_index=FLAGS.first_index, pretrained=FLAGS.pretrained
    )


def with_shards(
    strategies: dict[str, hj.Strategy], data: hj.data.Dataset
) -> dict[str, hj.Strategy]:
    """Return the strategies with every worker on its own shard of the data."""

    def partition(workers: int, seed: int) -> Any:
        labels, alpha = data.train.y, FLAGS.dirichlet
        return hj.data.dirichlet(labels, workers, alpha=alpha, seed=seed)

    sampler = hj.sampling.sharded(partition)
    return {k: s._replace(sampler=sampler) for k, s in strategies.items()}
