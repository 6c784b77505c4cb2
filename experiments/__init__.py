"""Scripts that use hetjax: the main jobs, the papers' claims, and benchmarks."""
