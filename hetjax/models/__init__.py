"""Models of the papers, in flax.nnx; the factories build one for a data set's sizes."""

from hetjax.models.mlp import MLP, SparseMLP, mlp, sparse_mlp

__all__ = ["MLP", "SparseMLP", "mlp", "sparse_mlp"]
