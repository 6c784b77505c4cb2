"""The records of a run: its history, the ledger of its workers, and losses."""
