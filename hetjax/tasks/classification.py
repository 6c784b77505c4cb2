"""Classification tasks: softmax cross-entropy with one, several or no labels."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from hetjax.arguments import checked
from hetjax.data.dataset import Dataset
from hetjax.recipes import by_name
from hetjax.tasks import augment as images
from hetjax.tasks.heads import make_head, with_head
from hetjax.tasks.inputs import forward, make_inputs
from hetjax.tasks.model import as_model
from hetjax.tasks.task_checks import check_classes, check_outputs
from hetjax.tasks.types import Task

TOP = (1, 3, 5)  # the k of P@k


@by_name
@checked
def classification(
    model: Any,
    data: Dataset,
    *,
    augment: images.Transform | None = None,
    normalize: images.Transform | tuple[Any, Any] | None = None,
    mix: images.Mix | None = None,
    row_params: tuple[str, ...] = (),
    output: Any = "auto",
    output_params: tuple[str, ...] = (),
) -> Task:
    """The task of predicting a data set's labels with a model.

    `model` is a `flax.nnx` module or a callable that builds one (such as a module
    class, called as `model(num_features, num_classes, rngs=...)`, so that every seed
    has different initial parameters), a `flax.linen` module, or a `Model` of plain
    functions. It maps inputs [B, ...] to logits [B, C]. `row_params` names weights
    ("kernel", "first/kernel") that meet the input only through `hetjax.sparse.matmul`;
    nnx models mark them with `hetjax.sparse.RowParam` instead. A linen module must take
    such a weight's shape from `x.shape[-1]`: in training it only sees the rows of the
    batch.

    `augment` is a function (key, x) -> x, such as those of `hetjax.tasks.augment`. It
    is applied only in training steps, with a new key in each. `normalize` is such a
    function that ignores its key, or a pair (mean, std) of numbers or [C]; it is
    applied after `augment`, and in evaluation, too. Both may change the shape of an
    example, to the same shape; `num_features` refers to the model's inputs. `mix`, such
    as `augment.mixup()`, mixes pairs of examples, last and only in training:

        (key, x) -> (x, partner [B], share [B])
        loss_i = share_i CE(z_i, y_i) + (1 - share_i) CE(z_i, y_partner(i))

    It needs class ids and the "full" softmax, which "auto" then selects. All three need
    dense inputs. The restored model is the user's, which does not normalize its inputs.

    `output` selects how the output layer is trained: "full" softmax, the same in
    "chunked" form, "sampled", "slide", or the result of a function of `hetjax.output`;
    "auto" is chunked above `MANY_LABELS` labels if the layer is known, else full. All
    but "full" need to know the last layer z = h W^T + b: nnx models mark W [C, H] and
    b [C] as `hetjax.output.OutputParam`, other models name them in `output_params`.

    Loss: -sum_c t_c log softmax(z)_c, t = 1/|labels| on each true label (estimated in
    training if `output` is "sampled" or "slide"). Metrics: "accuracy" if every example
    has one class, else "p@1", "p@3", "p@5": hits among the k largest logits over k.
    Metrics, and the loss reported with them, are exact over all labels.
    """
    check_classes(data)
    if mix is not None:
        output = _full_output(data, output)
    inputs = make_inputs(data, augment, normalize, mix)
    sizes = inputs.num_features, data.num_classes
    m = as_model(model, data, row_params, output_params, sizes, inputs.for_evaluation)
    run = forward(m, inputs)
    classes = data.num_classes
    check_outputs(
        m,
        run,
        data,
        lambda shape: shape == (2, classes),
        f"logits [B, {classes}], as the data have {classes} classes",
    )

    def loss(params, model_state, batch, key):
        logits, state = run.train_outputs(params, model_state, batch, key)
        return cross_entropy(logits, batch.y), state

    def mixed_loss(params, model_state, batch, key):
        x, partner, share = inputs.mixed(inputs.for_training(batch.x, key), key)
        logits, state = m.apply(params, model_state, x, key, True)
        y = jnp.asarray(batch.y)  # rows of padding have the labels of true examples
        first, other = cross_entropy(logits, y), cross_entropy(logits, y[partner])
        return share * first + (1 - share) * other, state

    num, measures = num_top(data), precisions if data.multilabel else accuracy

    def metrics(params, model_state, batch):
        logits = run.eval_outputs(params, model_state, batch)
        top = best(logits, num)
        return {"loss": cross_entropy(logits, batch.y)} | measures(top, batch.y)

    task = Task(
        m.init,
        loss if mix is None else mixed_loss,
        metrics,
        "p@1" if data.multilabel else "accuracy",
        m.restore,
        m.row_params,
        mixes=mix is not None,
    )
    head = make_head(m, data, output, run.train_outputs)
    if head is None:
        return task
    return with_head(task, head, run.eval_outputs, num, measures)


def cross_entropy(logits: jax.Array, y: Any) -> jax.Array:
    """Return [B] softmax cross-entropy of logits [B, C], y class ids [B] or BCOO.

    -sum_c t_c (z_c - logsumexp(z)); 0 for a row without labels.
    """
    logits = jnp.asarray(logits, jnp.float32)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    if not isinstance(y, BCOO):
        return normalizer - jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
    rows, columns = y.indices[:, 0], y.indices[:, 1]
    z = logits.at[rows, columns].get(mode="clip") - normalizer.at[rows].get(mode="clip")
    return -jax.ops.segment_sum(
        y.data * z, rows, num_segments=logits.shape[0], indices_are_sorted=True
    )


def num_top(data: Dataset) -> int:
    """Return the number of best labels that the metrics of a data set need."""
    if not data.multilabel:
        return 1
    return max(k for k in TOP if k <= data.num_classes)


def best(logits: jax.Array, num: int) -> jax.Array:
    """Return [B, num] labels with the largest logits [B, C], best first."""
    if num == 1:  # faster than a top_k
        return jnp.argmax(logits, axis=-1)[:, None]
    return jax.lax.top_k(logits, num)[1]


def accuracy(top: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    """Return the accuracy [B]: whether the best label [B, 1] is the class id [B]."""
    return {"accuracy": (top[:, 0] == y).astype(jnp.float32)}


def precisions(top: jax.Array, y: BCOO) -> dict[str, jax.Array]:
    """Return P@k of the best labels [B, k], best first: hits in the first k over k."""
    rows, columns = y.indices[:, 0], y.indices[:, 1]
    match = top.at[rows].get(mode="clip") == columns[:, None]
    hits = jax.ops.segment_sum(  # [B, k]: whether the j-th guess is a true label
        (match & (y.data > 0)[:, None]).astype(jnp.float32),
        rows,
        num_segments=top.shape[0],
    )
    ks = [k for k in TOP if k <= top.shape[1]]
    return {f"p@{k}": hits[:, :k].sum(-1) / k for k in ks}


def _full_output(data: Dataset, output: Any) -> str:
    """Return the output layer of a task with `mix`; a ValueError if impossible."""
    if data.multilabel:
        raise ValueError(
            f"{data.name}: mix needs one class per example, y [N], but these examples "
            "have sets of labels: leave mix out"
        )
    if not isinstance(output, str) or output not in ("auto", "full"):
        raise ValueError(
            f"output={output!r} does not train on mixed examples: leave mix out, or "
            'pass output="full"'
        )
    return "full"
