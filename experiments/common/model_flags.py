"""Flags for the precision of the scripts' models and the pipelines of their inputs."""

from absl import flags

from experiments.common.named_data import Inputs
from experiments.common.pipelines import PIPELINES

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "pipeline", "none", list(PIPELINES), "augmentation and normalization of images"
)
flags.DEFINE_enum(
    "dtype",
    None,
    ["float32", "bfloat16"],
    "the type that layers compute in; parameters are float32",
)
flags.DEFINE_boolean("remat", False, "compute activations twice, to save memory")
flags.DEFINE_string(
    "pretrained", None, "published weights: a .safetensors file, or its folder"
)


def inputs() -> Inputs:
    """The settings of the flags."""
    return Inputs(FLAGS.pipeline, FLAGS.dtype, FLAGS.remat, FLAGS.pretrained)
