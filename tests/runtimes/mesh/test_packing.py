"""Packing of small inputs into one buffer: unpacking restores them bit for bit."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hetjax.runtimes.mesh.superstep import LARGE_LEAF, pack, unpack

DTYPES = (np.float32, np.int32, np.uint32, np.bool_, np.int8, np.uint8, np.float16)
SIDES = st.integers(0, 4)


@st.composite
def supersteps(draw):
    """Trees of several similar supersteps, with leaves [devices, ...]; the devices."""
    devices, count = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shapes = draw(st.lists(st.lists(SIDES, max_size=2), min_size=1, max_size=4))
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in shapes]

    def tree():
        each = zip(shapes, dtypes, strict=True)
        leaves = [draw(arrays.arrays(d, (devices, *s))) for s, d in each]
        return {"first": leaves[0], "others": tuple(leaves[1:])}

    return [tree() for _ in range(count)], devices


def unpacked(trees, *, device, superstep, program=lambda f: f):
    devices = len(jax.tree.leaves(trees[0])[0])
    packed, packing = pack(trees, devices)
    mine = jax.tree.map(lambda x: x[device, superstep], packed)
    return program(lambda p: unpack(p, packing))(mine)


@given(supersteps())
@settings(deadline=None)
def test_every_device_unpacks_every_superstep(given_supersteps):
    """Bit for bit, including the payloads of NaNs."""
    trees, devices = given_supersteps
    for superstep, tree in enumerate(trees):
        for device in range(devices):
            found = unpacked(trees, device=device, superstep=superstep)
            expected = jax.tree.map(lambda x, d=device: x[d], tree)
            assert jax.tree.structure(found) == jax.tree.structure(expected)
            for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
                assert (np.asarray(a).dtype, a.shape) == (b.dtype, b.shape)
                assert np.asarray(a).tobytes() == b.tobytes()


@pytest.mark.parametrize("program", [lambda f: f, jax.jit])
def test_unpacking_inside_a_program(program):
    tree = {
        "batch": np.arange(2 * LARGE_LEAF, dtype=np.float32).reshape(2, -1),
        "flags": np.array([[True, False], [False, False]]),
        "rates": np.array([[0.1], [np.nan]], np.float32),
        "signs": np.array([[-1, 1], [3, -(2**31)]], np.int32),
    }
    for device in (0, 1):
        found = unpacked([tree], device=device, superstep=0, program=program)
        for name, leaf in tree.items():
            np.testing.assert_array_equal(found[name], leaf[device], err_msg=name)


def test_only_small_leaves_share_the_buffer():
    large = np.zeros((1, LARGE_LEAF // 4 + 1), np.float32)
    packed, _ = pack([(large, np.zeros((1, 5), np.uint32))], 1)
    assert [x.shape for x in packed.large] == [(1, 1, *large.shape[1:])]
    assert packed.words.shape == (1, 1, 1 + 5)


def test_no_inputs_at_all():
    """A program can still read the number of supersteps."""
    packed, packing = pack([(), (), ()], 2)
    assert packed.words.shape[:2] == (2, 3)
    assert unpack(jax.tree.map(lambda x: x[0, 0], packed), packing) == ()
