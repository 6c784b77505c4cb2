"""Save the complete state of a run while it trains, and restore it; saved models.

`settings` has the user's choices, `checkpoint_files` the folder of a run,
`checkpoint_manager` its writer, and `values` the encoding of its state. The parts of a
run declare their own state (`hetjax.checkpointable`, `hetjax.engine.snapshots`).
"""
