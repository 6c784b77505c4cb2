"""The formulas that merges consist of: stateless functions on pytrees and arrays."""
