"""Code that the scripts share: flags, named data sets, claims and their verdicts."""
