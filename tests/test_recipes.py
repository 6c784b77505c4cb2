"""Recipes of things with any number of positional arguments, through JSON."""

import gc
import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hetjax as hj
from hetjax import recipes
from hetjax.tasks import augment

X = np.random.default_rng(0).random((4, 16, 16, 3), np.float32)


def again(thing):
    return recipes.make(json.loads(json.dumps(recipes.recipe_of(thing))), {})


TRANSFORMS = {
    "crops": augment.chain(augment.pad_crop(2), augment.random_crop(12)),
    "resized": augment.random_resized_crop((12, 8), method="bicubic"),
    "center": augment.chain(augment.resize(14), augment.center_crop(12)),
    "colors": augment.chain(
        augment.flip(), augment.color_jitter(brightness=0.4, white=1.0)
    ),
    "rand_augment": augment.rand_augment(1, white=1.0),
    "normalize": augment.normalize((0.1, 0.2, 0.3), 0.5),
    "nested": augment.chain(augment.chain(augment.flip(0.5)), augment.pad_crop(1)),
    "nothing": augment.chain(),
}


def program(function):
    """Its operations and constants; compiling them would take most of the time."""
    return jax.jit(function).lower(jax.random.key(3), X).as_text()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_made_again_is_the_same(name):
    before, after = TRANSFORMS[name], again(TRANSFORMS[name])
    assert after is not before
    assert program(after) == program(before)
    if name in ("crops", "colors"):
        key = jax.random.key(3)
        np.testing.assert_array_equal(jax.jit(before)(key, X), jax.jit(after)(key, X))


def test_a_choice_of_mixes_made_again_is_the_same():
    chosen = augment.one_of(
        augment.mixup(0.4), augment.cutmix(), probabilities=(0.25, 0.75)
    )
    made = again(chosen)
    assert program(made) == program(chosen)
    before, after = jax.jit(chosen), jax.jit(made)
    for seed in range(4):
        key = jax.random.key(seed)
        jax.tree.map(np.testing.assert_array_equal, before(key, X), after(key, X))


def test_what_has_no_recipe_is_not_kept_alive():
    x = np.zeros((4, 2), np.float32)
    build = hj.models.mlp(hidden=2)
    data = hj.data.from_arrays((x, np.arange(4)), (x, np.arange(4)))
    with pytest.raises(recipes.NoRecipe, match="was not made by name"):
        recipes.recipe_of(data)
    alive = weakref.ref(data)
    task = hj.classification(build, data)
    del data, task
    gc.collect()
    assert alive() is None


def test_a_dtype_is_named():
    build = hj.models.vit(size=(1, 8, 1, 8), image=(16, 16, 3), dtype=jnp.bfloat16)
    recipe = recipes.recipe_of(build)
    assert recipe["kwargs"]["dtype"] == {"name": "jax.numpy:bfloat16"}
    assert recipes.recipe_of(again(build)) == recipe
