"""The papers' claims: a script per paper, and modules for parts without training."""
