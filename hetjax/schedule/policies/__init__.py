"""Policies: who merges now and who does what next, one file each (host world)."""
