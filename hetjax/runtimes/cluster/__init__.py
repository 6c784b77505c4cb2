"""Workers on many machines: every worker is an actor of a Ray cluster.

The loop and its clock run in the driver, as for threads; a worker's replica, data and
programs live in its actor. `machine` describes the workers, `opening` prepares a run,
`member` is what an actor does, `exchange` finds what a merge needs of the members, and
`ray_cluster` is the only module that imports Ray.
"""
