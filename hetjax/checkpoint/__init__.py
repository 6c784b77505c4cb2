"""Checkpoints: everything that a run is, saved while it goes on, and taken up again.

`settings` is what users choose, `folder` what the folder of a run holds, `keeper` who
writes it, `files` one checkpoint in it, `values` its JSON. What is saved is said by the
parts of a run themselves (`hetjax.checkpointable`, `hetjax.engine.snapshots`).
"""
