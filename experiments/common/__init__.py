"""What the scripts share: flags, data sets by name, claims and their verdicts."""
