"""Scripts that use hetjax: its main jobs, the papers, benchmarks."""
