"""Runs with an output layer are kept and go on, with its state, from the folder."""

import chex
import pytest
from small_layers import DATA

import hetjax as hj
from hetjax import output
from hetjax.machine import preset

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


@pytest.mark.full  # three runs for each layer
@pytest.mark.parametrize("name", LAYERS)
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
    message = rf"other settings: output is .{name}\(.* there, and .{name}\(.* here"
    with pytest.raises(ValueError, match=message):
        train(other, checkpoint=folder)


@pytest.mark.full  # as many tasks are built and compiled
def test_a_saved_model_fits_a_task_with_another_output_layer(tmp_path):
    """The tables of SLIDE are not of the model."""
    history = train(LAYERS["slide"][0])
    history.save_model(tmp_path / "model")
    for layer in ("full", "sampled", LAYERS["slide"][1]):
        task = hj.classification(hj.models.sparse_mlp(hidden=4), DATA, output=layer)
        model = hj.load_model(tmp_path / "model", task)
        chex.assert_trees_all_equal(model(DATA.test.x), history.model(DATA.test.x))


def test_results_say_which_layer_was_trained():
    histories = [train(layer) for layer in ("full", LAYERS["sampled"][0])]
    assert [h.output for h in histories] == [
        "",
        "sampled(negatives=6, distribution='log_uniform')",
    ]
    for history in histories:
        comparison = hj.Comparison([history], data={"name": DATA.name}, machine={})
        line = f"output layer: {history.output}"
        assert (line in str(comparison.table())) == bool(history.output)
