"""Small data with sets of labels, and every output layer at its size."""

import hetjax as hj
from hetjax import output

DATA = hj.data.synthetic_xmc(
    rows=60, test_rows=20, features=30, labels=12, nonzeros=6.0, labels_per_row=2.0
)
LAYERS = {
    "chunked": output.chunked(chunk=5),
    "sampled": output.sampled(negatives=6),
    "slide": output.slide(codes=1, tables=3, active=4, rebuild_every=3),
}
