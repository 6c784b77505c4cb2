"""The formulas that merges consist of: stateless functions on pytrees and arrays.

>>> import hetjax as hj
>>> hj.formulas.bias_weights([4, 12]).tolist()
[0.25, 0.75]
"""

from hetjax.merge.formulas.alignment import aligned
from hetjax.merge.formulas.compression import (
    compressed_message,
    quantized,
    top_entries,
)
from hetjax.merge.formulas.gradients import (
    compensated_gradient,
    joined_mean,
    running_mean_square,
    scaffold_control,
)
from hetjax.merge.formulas.moves import (
    elastic_move,
    mean_correction,
    momentum_mean,
    moved,
    sma_correction,
    weighted_mean,
    weighted_move,
)
from hetjax.merge.formulas.server_steps import (
    gradient_sum_step,
    magma_steps,
    nova_step,
    optimizer_step,
    pair_average,
)
from hetjax.merge.formulas.weights import (
    accuracy_weights,
    angle_weights,
    angles,
    bias_weights,
    model_norm,
    normalized_weights,
    nova_weights,
    proportional_weights,
)

__all__ = [
    "accuracy_weights",
    "aligned",
    "angle_weights",
    "angles",
    "bias_weights",
    "compensated_gradient",
    "compressed_message",
    "elastic_move",
    "gradient_sum_step",
    "joined_mean",
    "magma_steps",
    "mean_correction",
    "model_norm",
    "momentum_mean",
    "moved",
    "normalized_weights",
    "nova_step",
    "nova_weights",
    "optimizer_step",
    "pair_average",
    "proportional_weights",
    "quantized",
    "running_mean_square",
    "scaffold_control",
    "sma_correction",
    "top_entries",
    "weighted_mean",
    "weighted_move",
]
