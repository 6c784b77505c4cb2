"""`load_model`: load a trained model from its own folder or that of a run."""

import warnings
from pathlib import Path
from typing import Any

import jax

from hetjax import tree
from hetjax.api.run_folder import first_process_folder, history_of
from hetjax.checkpoint import saved_models
from hetjax.checkpoint.checkpoint_files import find, holds_run
from hetjax.output.head import without_layer_state
from hetjax.tasks.types import Task


def load_model(path: str | Path, task: Task, *, best: bool = False) -> Any:
    """Return the user's own model with trained parameters, ready to predict.

    `path` is a folder that `history.save_model(path)` has written, or the folder of a
    run of `train(checkpoint=path)`: then the model is the final one, or with `best`
    that of the best evaluation, also of an unfinished run. A model of `save_model` fits
    a task with any output layer; that of a run needs the layer of its training.

    Errors: FileNotFoundError if there is no such folder; ValueError for a model with
    other shapes than the task's, for the final model of an unfinished run, or for a
    damaged folder.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    if first_process_folder(folder).exists():  # of a run of several processes
        folder = first_process_folder(folder)
    like = jax.eval_shape(task.init, jax.random.key(0))
    if not holds_run(folder):
        like = like[0], without_layer_state(like[1])
        if best:
            raise ValueError(
                f"{folder} holds one model: best=True is for the folder of a run"
            )
        return task.restore(*saved_models.load(folder, like))
    found = find(folder, any_version=True)
    assert found is not None
    for why in found.damaged:
        warnings.warn(f"{why}; an older checkpoint is used", stacklevel=2)
    if found.finished:
        history = history_of(found.values, task)
        if best:
            return task.restore(history.best_params, history.best_model_state)
        return history.model
    records = found.values["run"]["records"]
    if not best:
        raise ValueError(
            f"{folder} holds an unfinished run: resume it, or load the model of its "
            "best evaluation so far with best=True"
        )
    if records["best"] is None:
        raise ValueError(f"{folder} holds a run without evaluations so far")
    _, leaves = records["best"]
    arrays = [jax.numpy.asarray(x) for x in leaves]
    return task.restore(*tree.filled(like, arrays, f"{folder}: the task's model"))
