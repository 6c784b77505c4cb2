"""Real devices of this process, with a thread for each worker."""
