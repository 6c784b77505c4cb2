"""Output layers for many labels: how the last layer of a model is trained.

A model whose outputs are z = h W^T + b, with W [C, H] and b [C] marked as
`OutputParam`s, can be trained with

full       the ordinary softmax cross-entropy, with an array [batch, labels]
chunked    the same, in chunks of labels: no such array, and no gradient array for SGD
sampled    sampled softmax: the true labels and a few negatives per batch
slide      SLIDE: the true labels and those that locality-sensitive hashing finds

`hetjax.classification(model, data, output=...)` takes one of these names, or what the
functions here return. Evaluations are exact with all of them. The package stands on
`hetjax.sparse`; tasks use it.
"""

from hetjax.output.head import Head, OutputParam
from hetjax.output.layers import OutputLayer, chunked
from hetjax.output.sampled import sampled
from hetjax.output.slide import slide

LAYERS = ("auto", "full", "chunked", "sampled", "slide")

__all__ = [
    "LAYERS",
    "Head",
    "OutputLayer",
    "OutputParam",
    "chunked",
    "sampled",
    "slide",
]
