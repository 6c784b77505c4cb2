"""The workers of a Ray cluster from flags."""

from absl import flags

import hetjax as hj
from experiments.common import bounds
from experiments.common.bounds import bounded
from experiments.common.local_devices import slowdowns

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "address", "auto", "--machine=cluster: of a Ray cluster; auto: that of this machine"
)
flags.DEFINE_integer(
    "local_workers", None, "--machine=cluster: workers of a new cluster on this machine"
)
flags.DEFINE_list(
    "resources",
    [],
    "--machine=cluster: resources of a worker on its node, as CPU=4,GPU=1",
)
flags.DEFINE_integer("joiners", 0, "--machine=cluster: workers that may join a run")
bounded("local_workers", 1, 1024, "every worker is a process")
bounded("joiners", 0, 1024, "every worker is a process")
OWN = ("address", "local_workers", "resources", "joiners")


def machine() -> hj.api.ClusterMachine:
    """The cluster machine that the flags describe."""
    return hj.cluster_machine(
        FLAGS.address,
        local_workers=FLAGS.local_workers,
        resources=bounds.named_numbers(
            "resources", FLAGS.resources, "resource=number, as CPU=4"
        )
        or None,
        joiners=FLAGS.joiners,
        slowdown=slowdowns(),
        step_mode=FLAGS.step_mode,
    )
