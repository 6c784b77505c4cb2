"""Runs with an output layer are kept and go on, with its state, from the folder."""

import chex
import pytest
from quick import quick

import hetjax as hj
from hetjax import output
from hetjax.machine import preset

DATA = hj.data.synthetic_xmc(
    rows=60, test_rows=20, features=30, labels=12, nonzeros=6.0, labels_per_row=2.0
)
LAYERS = {
    "chunked": (output.chunked(chunk=5), output.chunked(chunk=6)),
    "sampled": (output.sampled(negatives=6), output.sampled(negatives=7)),
    "slide": tuple(
        output.slide(codes=1, tables=n, active=4, rebuild_every=3) for n in (3, 4)
    ),
}


def train(layer, **options):
    task = hj.classification(hj.models.sparse_mlp(hidden=4), DATA, output=layer)
    return hj.train(
        task,
        DATA,
        preset("uniform:2"),
        hj.local_sgd(batch_size=4, learning_rate=0.5, local_steps=2),
        seconds=0.03,
        num_evals=3,
        progress=False,
        **options,
    )


@pytest.mark.parametrize("name", quick(LAYERS, "sampled"))
def test_a_kept_run_goes_on_from_its_folder_alone(name, tmp_path):
    layer, other = LAYERS[name]
    seen = []

    def fail_at_the_second(point):
        seen.append(point)
        if len(seen) == 2:
            raise RuntimeError("the second")

    options = {"on_eval": fail_at_the_second, "on_error": "keep"}
    folder = tmp_path / "run"
    cut = train(layer, checkpoint=folder, every="1 evals", **options)
    assert len(cut.evals) == 2
    history, whole = hj.resume(folder, progress=False), train(layer)
    assert len(history.interruptions) == 1
    assert history.evals == whole.evals
    chex.assert_trees_all_equal(history.params, whole.params)
    chex.assert_trees_all_equal(history.model_state, whole.model_state)
    with pytest.raises(ValueError, match="a run whose (loss|model) has other settings"):
        train(other, checkpoint=folder)
