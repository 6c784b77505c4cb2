"""The papers, claim by claim: one script each, and the parts that train nothing."""
