"""The policies, one file each (host world)."""
