"""Runtimes: a module or folder for each kind of machine.

`simulated` runs on the virtual clock, `threads` and `mesh` on the devices of this
process, `cluster` on those of several hosts, `recorded` from a trace. `real` is shared
by all runs on real devices. `openers` finds the runtime of a machine. Nothing is
imported here, so that clocks do not import JAX.
"""
