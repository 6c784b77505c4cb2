"""Workers on many machines: every worker is an actor of a Ray cluster.

The loop and its clock run in the driver, as for threads; a worker's replica, data and
programs live in its actor. `cluster_machine` describes the workers, `open_cluster`
prepares a run, `actor` runs in the actor's process, and `ray_cluster` is the only
module that imports Ray. `hetjax.merge.merge_traffic` finds which arrays of a replica
must be sent for a merge.
"""
