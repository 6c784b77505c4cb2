"""Checkpoints: save the complete state of a run while it trains, and restore it.

`settings` has the user's choices, `checkpoint_folder` the folder of a run,
`checkpoint_manager` its writer, `checkpoint_files` one checkpoint, and `values` its
JSON. The parts of a run declare their own state (`hetjax.checkpointable`,
`hetjax.engine.snapshots`).
"""
