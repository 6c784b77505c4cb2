"""Compiled runs: each stretch of the tape becomes one XLA program."""
