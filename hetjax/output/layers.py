"""The interface of output layers, the chunked softmax, and checks of settings."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hetjax.data.dataset_checks import is_real, is_whole
from hetjax.output import softmax
from hetjax.output.softmax import Targets
from hetjax.recipes import by_name
from hetjax.sparse import WithKernel

MOST_LABELS = 2**30


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
def chunked(*, chunk: int | None = None) -> MakeLayer:
    """Exact softmax cross-entropy in chunks of labels: see `hetjax.output.softmax`.

        loss = -sum_c t_c (z_c - logsumexp(z)),   t = 1/|labels| on each true label

    It needs no array [batch, labels], and plain SGD needs no array for the gradient of
    W. `chunk` is the number of labels of a chunk; by default four million scores
    (16 MB), but at least 512 labels, are computed at a time. Results equal those of the
    full softmax up to rounding.
    """
    if chunk is not None:
        check_counts(MOST_LABELS, chunk=chunk)

    def size(h: jax.Array) -> int:
        return chunk or softmax.default_chunk(h.shape[0])

    def losses(
        h: jax.Array, w: jax.Array, b: jax.Array, state: Any, targets: Targets, key: Any
    ) -> tuple[jax.Array, Any]:
        del key  # nothing is drawn
        return softmax.cross_entropy(h, w, b, targets, size(h)), state

    def loss_and_grads(
        h: jax.Array,
        w: jax.Array,
        b: jax.Array,
        state: Any,
        targets: Targets,
        scale: jax.Array,
        key: Any,
    ) -> tuple:
        del key
        found = softmax.loss_and_grads(h, w, b, targets, scale, size(h))
        return *found, WithKernel(), state

    text = settings_text("chunked", chunk=chunk)
    layer = OutputLayer("chunked", losses, loss_and_grads, text=text)
    return lambda counts: layer


def check_counts(most: int, **settings: Any) -> None:
    """Raise a ValueError unless every setting is an integer of 1..most."""
    for name, value in settings.items():
        if not is_whole(value) or not 1 <= value <= most:
            raise ValueError(
                f"{name}={value!r}: pass an integer of at least 1 and at most {most:,}"
            )


def check_decay(name: str, value: Any) -> None:
    """Raise a ValueError unless the value is a finite number of at least 0."""
    if not is_real(value) or not math.isfinite(value) or value < 0:
        raise ValueError(
            f"{name}={value!r}: must be a finite number of at least 0, as intervals "
            "cannot shrink"
        )
