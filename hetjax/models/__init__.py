"""The papers' models in flax.nnx, as factories that adapt to a data set's sizes."""

from hetjax.models.bottleneck import resnet50, resnet101
from hetjax.models.convnet import convnet
from hetjax.models.distilbert import distilbert
from hetjax.models.lenet import lenet
from hetjax.models.magma import magma_cnn, magma_mlp
from hetjax.models.mlp import MLP, Linear, SparseMLP, linear, mlp, sparse_mlp
from hetjax.models.nin import nin
from hetjax.models.pretrained.loading import from_pretrained
from hetjax.models.resnet import resnet
from hetjax.models.vgg import vgg16
from hetjax.models.vit import vit
from hetjax.models.wide_resnet import wide_resnet

__all__ = [
    "MLP",
    "Linear",
    "SparseMLP",
    "convnet",
    "distilbert",
    "from_pretrained",
    "lenet",
    "linear",
    "magma_cnn",
    "magma_mlp",
    "mlp",
    "nin",
    "resnet",
    "resnet50",
    "resnet101",
    "sparse_mlp",
    "vgg16",
    "vit",
    "wide_resnet",
]
