"""Replicas on a mesh: all local rounds of a wave, and the merges after them, in one
program.

`opening` prepares a run, `placing` says which strategies and machines fit. `layout` is
where workers are, `plan` orders a wave's merges, `programs` compiles a wave, `feed`
sends its batches, `waves` launches it and reads its numbers. `clock` and `player` are
what the loop sees of that.

A run may have several processes: `processes` is all that the other modules need to know
of them. `joining` starts JAX's distributed runtime, `peers` finds out who is alive, and
`abort_handler` says it where that runtime aborts the process.
"""
