"""Real devices of this process: a thread for each worker."""
