"""A model's output layer, split from the rest of the model: its weights and its inputs.

The weights are identified by their paths, like row weights. The layer's inputs h are
the model's outputs for parameters in which W is the identity and b is zero; thus any
model with a last layer z = h W^T + b can be split.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from hetjax.output.layers import OutputLayer
from hetjax.sparse import path_name
from hetjax.tree import ModelState, Params, PyTree

_LAYER = 0x4F555450  # folded into a step's key: flax itself folds in small integers


class OutputParam(nnx.Param):
    """A weight W [C, H] or bias b [C] that is used only in an output layer h W^T + b.

    Marking both promises that the model's outputs are z = h W^T + b, with one row of W
    and one entry of b per label.
    """


class WithLayer(NamedTuple):
    """A model state together with the state of the output layer, in training."""

    model: ModelState
    output: Any


def without_layer_state(model_state: ModelState) -> ModelState:
    """Return the state of the model alone, without that of the output layer."""
    return model_state.model if isinstance(model_state, WithLayer) else model_state


class Head(NamedTuple):
    """A model's output layer and the way it is trained.

    features(params, model_state, batch, key) -> (h [B, H], model_state) runs the model
    in training mode, for parameters `without(params)`.
    """

    features: Callable[[Params, ModelState, Any, jax.Array], tuple]
    kernel: str  # path of W in the parameters
    bias: str | None  # path of b
    layer: OutputLayer
    loss: Callable | None = None  # the loss of the task to which the head belongs

    def weights(self, params: Params) -> tuple[jax.Array, jax.Array]:
        """Return (W [C, H], b [C]); b is zero if there is no bias."""
        leaves = {
            path_name(path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        }
        kernel = leaves[self.kernel]
        if self.bias is None:
            return kernel, jnp.zeros(kernel.shape[0], kernel.dtype)
        return kernel, leaves[self.bias]

    def without(self, params: Params) -> Params:
        """Return the parameters with the identity as W and zeros as b."""
        kernel, bias = self.weights(params)
        size = kernel.shape[1]
        identity = jnp.eye(size, dtype=kernel.dtype), jnp.zeros(size, bias.dtype)
        return self.replaced(params, *identity)

    def layer_key(self, key: jax.Array) -> jax.Array:
        """Return the layer's key for a training step with this key."""
        return jax.random.fold_in(key, _LAYER)

    def replaced(self, tree: PyTree, kernel: Any, bias: Any) -> PyTree:
        """Return the tree with these leaves in place of W and b."""
        leaves = {self.kernel: kernel, self.bias: bias}
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaves.get(path_name(path), leaf), tree
        )

    def init(self, params: Params, model_state: ModelState, key: Any) -> ModelState:
        """Return the initial model state, with that of the layer if it has one."""
        if self.layer.init is None:
            return model_state
        return WithLayer(model_state, self.layer.init(self.weights(params)[0], key))

    def split(self, model_state: ModelState) -> tuple[ModelState, Any]:
        """Return (state of the model alone, state of the layer)."""
        state = model_state.output if isinstance(model_state, WithLayer) else ()
        return without_layer_state(model_state), state

    def joined(self, model_state: ModelState, layer_state: Any) -> ModelState:
        """Undo `split`."""
        if self.layer.init is None:
            return model_state
        return WithLayer(model_state, layer_state)
