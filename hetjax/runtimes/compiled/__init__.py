"""Compiled runs: a stretch of the tape becomes one program."""
