"""Benchmarks of hetjax and of its peers."""
