"""The papers' models in flax.nnx, as factories that adapt to a data set's sizes."""

from hetjax.models.bottleneck import resnet50, resnet101
from hetjax.models.cifar_resnets import resnet, wide_resnet
from hetjax.models.distilbert import distilbert
from hetjax.models.mlp import MLP, Linear, SparseMLP, linear, mlp, sparse_mlp
from hetjax.models.pretrained import from_pretrained
from hetjax.models.small_cnns import convnet, lenet, magma_cnn, magma_mlp, nin
from hetjax.models.vgg import vgg16
from hetjax.models.vit import vit

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
