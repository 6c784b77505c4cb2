"""The player of a cluster: members may be out of reach, and bytes are counted."""

from collections.abc import Sequence

from hetjax.engine.play import Player
from hetjax.engine.tape import Gather
from hetjax.runtimes.cluster.store import ClusterStore


class ClusterPlayer(Player):
    """Plays the tape of one run on a cluster."""

    store: ClusterStore

    def open(self) -> None:
        """Make the first model."""
        super().open()
        self.traits = self.traits._replace(counts_bytes=True, may_miss=True)
        self.plays = {**self.plays, Gather: self._gather}

    def _gather(self, gather: Gather) -> Sequence[int]:
        return self.store.gather(gather.action)

    def traffic(self) -> Sequence[tuple[int, int]]:
        """Bytes that came from each worker, and went to it."""
        return self.store.traffic()
