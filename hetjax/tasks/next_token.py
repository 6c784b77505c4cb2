"""Language modeling: the task of predicting the next token."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.arguments import Count, checked
from hetjax.data.columns import in_memory
from hetjax.data.dataset import Dataset
from hetjax.recipes import by_name
from hetjax.tasks.inputs import forward, make_inputs
from hetjax.tasks.model import as_model
from hetjax.tasks.task_checks import check_outputs
from hetjax.tasks.types import Mean, Task


@by_name
@checked
def next_token(model: Any, data: Dataset, *, vocabulary: Count | None = None) -> Task:
    """The task of predicting the next token at each position of a sequence.

        loss_i = sum_t m_it (-log softmax(z_it)[y_it]) / sum_t m_it

    y is an integer array [N, T], or a dictionary {"targets": [N, T], "mask": [N, T]},
    where a mask of 0 leaves a position out; `hetjax.data.from_tokens` makes x and y
    from a long text. x is the input of the model, such as tokens [N, T]. `model` is
    anything that `classification` takes, and returns logits z [B, T, V]; a builder of
    modules is called as `model(vocabulary, rngs=...)`. `vocabulary` (V) defaults to the
    largest token plus one if the tokens are in memory.

    Metrics: "perplexity", exp of the loss per token (the main metric: smaller is
    better), "accuracy" per token, and "loss" per token. Errors: a ValueError for
    targets that are not tokens, or outputs of another shape.
    """
    length = _length(data)
    known = vocabulary or _vocabulary(data)
    m = as_model(model, data, sizes=(known,))
    _check_range(data, known)
    run = forward(m, make_inputs(data, tokens=True))
    check_outputs(
        m,
        run,
        data,
        lambda shape: shape[:-1] == (2, length) and shape[-1] >= known,
        f"logits [B, {length}, V], V at least {known}",
    )

    def per_token(z: jax.Array, y: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return losses, hits and the mask, [B, T] each."""
        targets, mask = _parts(y)
        z = jnp.asarray(z, jnp.float32)
        at = targets[..., None].astype(jnp.int32)
        chosen = jnp.take_along_axis(z, at, -1)[..., 0]
        losses = jax.nn.logsumexp(z, axis=-1) - chosen
        hits = jnp.argmax(z, axis=-1) == targets
        ones = jnp.ones_like(losses)
        weight = ones if mask is None else jnp.asarray(mask, jnp.float32)
        # a negative target would count from the end of the vocabulary
        losses = jnp.where(targets < 0, jnp.nan, losses)
        # a masked position may have any target, and any loss
        return jnp.where(weight > 0, losses, 0.0), hits, weight

    def loss(params, model_state, batch, key):
        z, state = run.train_outputs(params, model_state, batch, key)
        losses, _, weight = per_token(z, batch.y)
        count = jnp.maximum(weight.sum(1), 1.0)
        return (losses * weight).sum(1) / count, state

    def metrics(params, model_state, batch):
        z = run.eval_outputs(params, model_state, batch)
        losses, hits, weight = per_token(z, batch.y)
        count = weight.sum(1)
        return {
            "loss": Mean((losses * weight).sum(1), count),
            "accuracy": Mean((hits * weight).sum(1), count),
        }

    return Task(
        m.init, loss, metrics, "perplexity", m.restore, mode="min", finish=_finish
    )


def _finish(means: dict[str, Any]) -> dict[str, Any]:
    if isinstance(means["loss"], jax.Array):
        return {"perplexity": jnp.exp(means["loss"])} | means
    with np.errstate(over="ignore"):
        return {"perplexity": float(np.exp(means["loss"]))} | means


def _parts(y: Any) -> tuple[Any, Any]:
    """Return (targets, mask) of the y of a data set or batch; the mask may be None."""
    if isinstance(y, Mapping):
        return y.get("targets"), y.get("mask")
    return y, None


def _length(data: Dataset) -> int:
    """Return the length of sequences; a ValueError if y has no tokens."""
    y: Any = data.train.y
    targets, mask = _parts(y)
    keys = set(y) if isinstance(y, Mapping) else {"targets"}
    shapes = [getattr(part, "shape", None) for part in (targets, mask)]
    fits = shapes[0] is not None and len(shapes[0]) == 2 and targets.dtype.kind in "iu"
    if not fits or keys - {"targets", "mask"} or shapes[1] not in (None, shapes[0]):
        one = not isinstance(y, Mapping)
        found = f"{list(y.shape)} of {y.dtype}" if one else sorted(keys)
        raise ValueError(
            f"y of {data.name} is {found}: pass integers [N, T] (from_arrays(..., "
            'targets="values")), or {"targets": [N, T], "mask": [N, T]}'
        )
    return targets.shape[1]


def _check_range(data: Dataset, vocabulary: int) -> None:
    """Raise a ValueError for an unmasked target in memory outside the vocabulary."""
    for part, split in (("training", data.train), ("test", data.test)):
        targets, mask = _parts(split.y)
        if not in_memory(targets) or not (mask is None or in_memory(mask)):
            continue
        wrong = (targets < 0) | (targets >= vocabulary)
        if mask is not None:
            wrong &= np.asarray(mask) > 0
        if wrong.any():
            raise ValueError(
                f"y of the {part} split of {data.name} has the token "
                f"{targets[wrong][0]}, outside 0..{vocabulary - 1}: pass a larger "
                'vocabulary=, or mask the position: {"targets": ..., "mask": ...}'
            )


def _vocabulary(data: Dataset) -> int:
    """Return the largest token plus one."""
    found = []
    for split in (data.train, data.test):
        for part in (split.x, split.y):
            targets, _ = _parts(part)
            for leaf in jax.tree.leaves(targets if part is split.y else part):
                if leaf.dtype.kind not in "iu":
                    continue
                if not in_memory(leaf):
                    raise ValueError(
                        f"{data.name}: the tokens are not in memory: pass vocabulary=, "
                        "the number of different tokens"
                    )
                found.append(int(leaf.max()))
    return max(found) + 1
