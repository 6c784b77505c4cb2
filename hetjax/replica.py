"""What a worker holds of the model: the word that local rules and merges share."""

from typing import Any, NamedTuple


class Replica(NamedTuple):
    """A worker's copy of the model and what it keeps beside it."""

    params: Any
    model_state: Any = ()  # batch statistics and the like
    opt_state: Any = ()  # of the local rule
    carry: Any = {}  # the slots that the Merge declares in `needs`
