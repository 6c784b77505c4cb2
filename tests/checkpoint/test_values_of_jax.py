"""Arrays and keys of JAX survive JSON as such."""

import jax
import jax.numpy as jnp
import numpy as np
from test_values import again

from hetjax.checkpoint.values import Encoder, decode
from hetjax.checkpointable import Leaves


def test_keys_and_other_floats():
    key = jax.random.fold_in(jax.random.key(3, impl="rbg"), 5)
    assert jnp.array_equal(jax.random.bits(again(key)), jax.random.bits(key))
    half = jnp.arange(3, dtype=jnp.bfloat16)
    assert again(half).dtype == jnp.bfloat16
    assert again(half).tolist() == [0, 1, 2]


def test_arrays_of_jax_come_back_as_such_and_leaves_as_those_of_numpy():
    """An own policy that calls `x.at[0].set` must find what it has saved."""
    state = {"x": jnp.arange(3.0), "y": np.arange(3), "weak": jnp.full((2,), 0.5)}
    found = again(state)
    assert [type(v) for v in found.values()] == [type(v) for v in state.values()]
    assert [v.weak_type for v in (found["x"], found["weak"])] == [False, True]
    assert (found["weak"] + jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert found["weak"].tolist() == [0.5, 0.5]
    leaves = again(Leaves([jnp.arange(3.0), np.ones(2)]))
    assert type(leaves) is Leaves
    assert all(type(x) is np.ndarray for x in leaves)


def test_an_array_that_is_found_twice_is_saved_once():
    encoder, x = Encoder(), jnp.arange(3)
    data = encoder.encode({"a": x, "b": [x]}, "it")
    assert len(encoder.arrays) == 1
    found = decode(data, [np.array(x)])
    assert found["a"].tolist() == found["b"][0].tolist() == [0, 1, 2]
