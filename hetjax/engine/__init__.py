"""The loop and what it works on: programs, replicas, the ledger, the history."""
