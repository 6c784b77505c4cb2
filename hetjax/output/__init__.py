"""Output layers for many labels: ways to train the last layer of a model.

A model whose outputs are z = h W^T + b, with W [C, H] and b [C] marked as
`OutputParam`s, can be trained with

full       the ordinary softmax cross-entropy, with an array [batch, labels]
chunked    the same, in chunks of labels: without that array; for SGD, without a
           gradient array as well
sampled    sampled softmax: the true labels and a few negatives per batch
slide      SLIDE: the true labels and those found by locality-sensitive hashing

`hetjax.classification(model, data, output=...)` takes one of these names, or the result
of a function below. Evaluations are exact with all of them. The package is built on
`hetjax.sparse`, and used by `hetjax.tasks`.
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
