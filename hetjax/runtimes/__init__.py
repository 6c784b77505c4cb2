"""Runtimes: one module or folder for each kind of machine.

`simulated` runs on the virtual clock, `threads` and `mesh` on the devices of this
process, `cluster` on those of many machines, `recorded` from a trace. `openers` finds
the runtime of a machine. Nothing is imported here, so that clocks do not import JAX.
"""
