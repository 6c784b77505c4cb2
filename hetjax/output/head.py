"""The last layer of a model, apart from the rest: its weights and its inputs.

The weights are named by their paths, as row weights are. The inputs h of the layer are
what the model returns when it is run on a view of its parameters in which W is the
identity and b is zero; so any model can be split whose last layer is z = h W^T + b.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.output.layers import OutputLayer
from hetjax.sparse import path_name
from hetjax.tree import ModelState, Params, PyTree

_LAYER = 0x4F555450  # folded into a step's key: flax folds in small numbers itself


class OutputParam(nnx.Param):
    """A weight W [C, H] or bias b [C] of an output layer z = h W^T + b, nowhere used.

    This promises that a model's outputs are these z, one row of W and b per label.
    """


class WithLayer(NamedTuple):
    """A model state in training, where the output layer has a state of its own."""

    model: ModelState
    output: Any


def own_state(model_state: ModelState) -> ModelState:
    """The model's own state, which it has with every output layer."""
    return model_state.model if isinstance(model_state, WithLayer) else model_state


class Head(NamedTuple):
    """A model's output layer, and how it is trained.

    features(params, model_state, batch, key) -> (h [B, H], model_state): the model, in
    training, when it is run on `without(params)`.
    """

    features: Callable[[Params, ModelState, Any, jax.Array], tuple]
    kernel: str  # path of W in the parameters
    bias: str | None  # path of b
    layer: OutputLayer
    loss: Callable | None = None  # of the task that the head belongs to

    def weights(self, params: Params) -> tuple[jax.Array, jax.Array]:
        """(W [C, H], b [C]); zeros if there is no bias."""
        leaves = {
            path_name(path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        }
        kernel = leaves[self.kernel]
        if self.bias is None:
            return kernel, jnp.zeros(kernel.shape[0], kernel.dtype)
        return kernel, leaves[self.bias]

    def without(self, params: Params) -> Params:
        """The parameters with the identity as W, and zeros as b."""
        kernel, bias = self.weights(params)
        size = kernel.shape[1]
        identity = jnp.eye(size, dtype=kernel.dtype), jnp.zeros(size, bias.dtype)
        return self.replaced(params, *identity)

    def layer_key(self, key: jax.Array) -> jax.Array:
        """The layer's own key of a step with this key."""
        return jax.random.fold_in(key, _LAYER)

    def replaced(self, tree: PyTree, kernel: Any, bias: Any) -> PyTree:
        """The tree with other leaves in the places of W and b."""
        leaves = {self.kernel: kernel, self.bias: bias}
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaves.get(path_name(path), leaf), tree
        )

    def init(self, params: Params, model_state: ModelState, key: Any) -> ModelState:
        """The model state at the start, with the layer's own if it has one."""
        if self.layer.init is None:
            return model_state
        return WithLayer(model_state, self.layer.init(self.weights(params)[0], key))

    def split(self, model_state: ModelState) -> tuple[ModelState, Any]:
        """(the model's own state, the layer's)."""
        state = model_state.output if isinstance(model_state, WithLayer) else ()
        return own_state(model_state), state

    def joined(self, model_state: ModelState, own: Any) -> ModelState:
        """Undo `split`."""
        if self.layer.init is None:
            return model_state
        return WithLayer(model_state, own)
