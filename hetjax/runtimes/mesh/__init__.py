"""Training on a mesh: each superstep (local rounds, then merges) is one program.

`open_mesh` prepares a run. `mesh_layout` assigns workers to devices and checks which
strategies and machines fit. `merge_stages` orders the merges of a superstep,
`mesh_programs` and `stage_program` compile it, `superstep` prepares its inputs,
`superstep_launcher` collects and launches them, and `in_flight` runs the programs and
reads their results. The loop sees only `mesh_clock` and `mesh_player`.

A run may have several processes, see `hetjax.processes`.
"""
