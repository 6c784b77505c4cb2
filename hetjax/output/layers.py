"""The interface of output layers, and the chunked softmax."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax

from hetjax.arguments import Bounds, checked
from hetjax.output import softmax
from hetjax.recipes import by_name
from hetjax.sparse import WithKernel

Chunk = Annotated[int, Bounds(1, 2**30)]


class OutputLayer(NamedTuple):
    """Pure functions of h [B, H], W [C, H], b [C], the layer's state and the targets.

    losses(h, W, b, state, targets, key) -> (losses [B], state), to be differentiated
    loss_and_grads(h, W, b, state, targets, scale [B], key)
        -> (losses [B], dh [B, H], dW, db, state), of sum_b scale_b loss_b
    init(W, key) -> state; None if the layer has no state
    text: the name and the settings, for results

    dW and db are arrays, or gradients that `sparse.subtract` and `sparse.dense` accept.
    """

    name: str
    losses: Callable[..., tuple[jax.Array, Any]]
    loss_and_grads: Callable[..., tuple]
    init: Callable[[jax.Array, jax.Array], Any] | None = None
    text: str = ""


def settings_text(name: str, **settings: Any) -> str:
    """Return a layer's name and settings, written as a Python call."""
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"


# [C] int64, the number of examples of each label -> OutputLayer
MakeLayer = Callable[[Any], OutputLayer]


@by_name
@checked
def chunked(*, chunk: Chunk | None = None) -> MakeLayer:
    """Exact softmax cross-entropy in chunks of labels: see `hetjax.output.softmax`.

        loss = -sum_c t_c (z_c - logsumexp(z)),   t = 1/|labels| on each true label

    It needs no array [batch, labels], and plain SGD needs no array for the gradient of
    W. `chunk` is the number of labels of a chunk; by default four million scores
    (16 MB), but at least 512 labels, are computed at a time. Results equal those of the
    full softmax up to rounding.
    """

    def losses(h, w, b, state, targets, key) -> tuple[Any, Any]:
        size = chunk or softmax.default_chunk(len(h))
        return softmax.cross_entropy(h, w, b, targets, size), state

    def loss_and_grads(h, w, b, state, targets, scale, key):
        size = chunk or softmax.default_chunk(len(h))
        found = softmax.loss_and_grads(h, w, b, targets, scale, size)
        return *found, WithKernel(), state

    text = settings_text("chunked", chunk=chunk)
    layer = OutputLayer("chunked", losses, loss_and_grads, text=text)
    return lambda counts: layer
