"""The shared parts of all runs on real devices: wall clock, measurements, dry run."""
