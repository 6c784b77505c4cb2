"""The loop, and what it keeps: ledger, replicas, programs."""
